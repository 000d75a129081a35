"""The router of `router.command.startup` without Ray, probes and gRPC frontend, for measurements."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from prometheus_client import CollectorRegistry

from common.garbage_collection import freeze_gc
from router.api.generation.generation import Generation
from router.api.generation.models import ServedModels
from router.api.generation.served_model import ServedModel
from router.api.generation.text.tokenizer import Tokenizer
from router.api.http.server import HttpConfig, HttpServer
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.workers.registry import Registry
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE
from rpc.channel import Endpoint


@dataclass(frozen=True, slots=True)
class _Handle:
    """A worker that is never stopped or restarted."""

    address: str
    worker_id: str
    role: worker_pb2.Role = ROLE_DECODE

    async def endpoint(self) -> Endpoint:
        return Endpoint(self.address)

    async def stop(self) -> None:
        raise AssertionError("the benchmark has no operator")

    async def drain(self, seconds: float) -> None:
        raise AssertionError("the benchmark has no operator")

    async def revive(self) -> None:
        raise AssertionError("the benchmark has no operator")


def run_router(
    folder: Path, vocab_size: int, workers: Sequence[str], port: int, core: int, pipe: Connection
) -> None:
    """Serve on one core until ended, on a port that others may share; says through `pipe` when it does.

    `workers`: their host:port.
    """
    os.sched_setaffinity(0, [core])
    asyncio.run(_route(folder, vocab_size, workers, port, pipe))


async def _route(folder: Path, vocab_size: int, workers: Sequence[str], port: int, pipe: Connection) -> None:
    config = RouterConfig(model=str(folder))
    metrics = RouterMetrics()
    handles = [_Handle(address, f"decode-{index}") for index, address in enumerate(workers)]
    async with Registry(handles, name=str(os.getpid())) as registry:
        await registry.wait_for_all(10.0)
        model = ServedModel(
            name="m", path=folder, mode=config.mode.value, max_model_len=8192, vocab_size=vocab_size
        )
        generation = Generation(
            model,
            Tokenizer.load(folder, vocab_size=vocab_size),
            ClusterDispatcher(config, registry, metrics),
        )
        http = HttpServer(
            ServedModels([generation]), HttpConfig(port=port, shared=True), metrics=CollectorRegistry()
        )
        await http.start()
        freeze_gc()
        pipe.send(True)
        await asyncio.Event().wait()
