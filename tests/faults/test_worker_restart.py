"""Workers as real Ray actors: what ends them, and what Ray makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import ray
from ray.exceptions import RayTaskError

from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.channel import connect
from tests.integration.tiny_cluster import work
from tests.unit.tiny import make_config, save_tiny_llama
from worker.config import WorkerConfig, WorkerRole
from worker.process.actor import WorkerActor

pytestmark = pytest.mark.thorough

RESTART_S = 150


class FragileWorker(WorkerActor):
    async def break_engine(self) -> None:
        def explode(*_: object) -> None:
            raise RuntimeError("device-side assert")

        self._host._parts.engine.runner.launch = explode  # type: ignore[method-assign, assignment]


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    save_tiny_llama(folder)
    return folder


def actor(folder: Path) -> Any:
    config = WorkerConfig(
        worker_id="decode-0", role=WorkerRole.DECODE, model="tiny", engine=make_config(folder)
    )
    return ray.remote(FragileWorker).options(max_restarts=-1, num_cpus=1).remote(config)


@pytest.fixture(scope="module")
def worker(local_ray: None, folder: Path) -> Iterator[Any]:
    """For all tests that end it: it comes back each time."""
    worker = actor(folder)
    yield worker
    ray.kill(worker)


async def start(worker: Any) -> str:
    """As the router does it: again, until an incarnation answers."""
    async with asyncio.timeout(RESTART_S):
        while True:
            try:
                address: str = (await worker.start.remote()).address
            except RayTaskError:
                raise
            except ray.exceptions.RayError:
                await asyncio.sleep(0.1)
            else:
                return address


async def describe(address: str) -> worker_pb2.WorkerInfo:
    async with connect(address) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)  # type: ignore[no-untyped-call]
        info: worker_pb2.WorkerInfo = await stub.Describe(worker_pb2.DescribeRequest(), timeout=10)
        return info


async def successor(worker: Any, before: worker_pb2.WorkerInfo) -> worker_pb2.WorkerInfo:
    """The incarnation that follows `before`."""
    async with asyncio.timeout(RESTART_S):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                info = await describe(await start(worker))
                if info.epoch != before.epoch:
                    return info
            await asyncio.sleep(0.05)


async def test_a_killed_worker_comes_back_as_a_new_peer(worker: Any) -> None:
    before = await describe(await start(worker))
    os.kill(before.pid, signal.SIGKILL)
    after = await successor(worker, before)
    assert after.pid != before.pid
    assert after.worker_id == before.worker_id


async def test_a_worker_whose_engine_died_tells_its_router_and_is_started_anew(worker: Any) -> None:
    address = await start(worker)
    before = await describe(address)
    await worker.break_engine.remote()
    async with connect(address) as channel:
        call = worker_pb2_grpc.WorkerStub(channel).Session()  # type: ignore[no-untyped-call]
        await call.write(worker_pb2.Command(submit=worker_pb2.Submit(work=work([1, 2, 3]))))
        with pytest.raises(Exception, match="device-side assert"):
            async for _ in call:
                pass
    assert (await successor(worker, before)).pid != before.pid


async def test_a_model_that_does_not_load_is_an_error_that_says_why(local_ray: None, tmp_path: Path) -> None:
    worker = actor(tmp_path)
    try:
        with pytest.raises(RayTaskError, match=r"config\.json"):
            await worker.start.remote()
    finally:
        ray.kill(worker)
