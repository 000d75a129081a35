"""A worker of the small model in a process of its own, without Ray: tests kill it at a chosen moment."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from rpc.baton.v1 import worker_pb2
from rpc.channel import Endpoint
from tests.engine_config import engine_config
from tests.faults.support.small_model import MAX_LEN
from tests.processes import starting
from worker.config import WorkerConfig, WorkerRole
from worker.process.host import WorkerHost

_ROLES = {WorkerRole.PREFILL: worker_pb2.ROLE_PREFILL, WorkerRole.DECODE: worker_pb2.ROLE_DECODE}
_START_S = 60.0


@dataclass
class WorkerProcess:
    """Implements `router.workers.registry.WorkerHandle`."""

    worker_id: str
    role: worker_pb2.Role
    address: str
    process: BaseProcess

    async def endpoint(self) -> Endpoint:
        return Endpoint(self.address)

    async def stop(self) -> None:
        self.process.kill()

    def kill(self) -> None:
        self.process.kill()


@asynccontextmanager
async def worker_process(folder: Path, role: WorkerRole, step_s: float) -> AsyncIterator[WorkerProcess]:
    """`step_s`: what every step takes at least."""
    context = starting()
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(folder, role, step_s, there), daemon=True)
    process.start()
    try:
        there.close()  # or an end of the process would not be noticed here
        if not await asyncio.to_thread(here.poll, _START_S):
            raise TimeoutError("the worker does not start")
        yield WorkerProcess(f"{role.value}-0", _ROLES[role], here.recv(), process)
    finally:
        process.kill()
        await asyncio.to_thread(process.join)


def _serve(folder: Path, role: WorkerRole, step_s: float, pipe: Connection) -> None:
    asyncio.run(_run(folder, role, step_s, pipe))


async def _run(folder: Path, role: WorkerRole, step_s: float, pipe: Connection) -> None:
    engine = engine_config(model_path=folder, num_pages=512, max_model_len=MAX_LEN, chunk_budget=64)
    config = WorkerConfig(
        worker_id=f"{role.value}-0", role=role, model="small", engine=engine, transport="nixl"
    )
    host = WorkerHost(config, on_death=lambda death: os._exit(1))
    await host.start()
    runner = host._parts.engine.runner
    launch = runner.launch

    def slowly(step):  # type: ignore[no-untyped-def]
        time.sleep(step_s)
        return launch(step)

    runner.launch = slowly  # type: ignore[method-assign]
    pipe.send(host.address)
    await asyncio.Event().wait()
