"""Several routers use one worker: each has its requests, knows of the others' load, and ends alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics import RouterMetrics
from router.placement.account.load import WorkerLoad
from router.workers.registry import Registry
from rpc.baton.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from rpc.baton.v1.worker_pb2 import ROLE_DECODE
from rpc.channel import connect
from rpc.session import ROUTER_METADATA
from tests.faults.local_cluster import LocalWorker
from tests.integration.reading import deltas_of
from tests.integration.tiny_cluster import Link, work, worker
from worker.config import WorkerRole
from worker.session import lease as lease_module

PATIENCE_S = 20.0
LONG = sampling_pb2.SamplingParams(max_tokens=90, ignore_eos=True)


@dataclass
class Router:
    registry: Registry
    dispatcher: ClusterDispatcher

    @property
    def load(self) -> WorkerLoad:
        return self.registry.sessions()[0].load

    async def sees(self, requests: int) -> None:
        """Until the worker reports as many requests of other routers."""
        async with asyncio.timeout(PATIENCE_S):
            while self.load.others.requests != requests:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def router(link: Link, name: str) -> AsyncIterator[Router]:
    async with Registry([LocalWorker("decode-0", ROLE_DECODE, link.host)], name=name) as registry:
        assert await registry.wait_for_all(PATIENCE_S)
        dispatcher = ClusterDispatcher(RouterConfig(model="tiny"), registry, RouterMetrics("mixed"))
        yield Router(registry, dispatcher)


async def read_all(call: Any) -> None:
    async for _ in call:
        pass


async def test_each_router_knows_the_others_and_their_load(folder: Path) -> None:
    async with (
        worker(folder, WorkerRole.DECODE, None) as link,
        router(link, "1 a") as first,
        router(link, "2 b") as second,
    ):
        async with asyncio.timeout(PATIENCE_S):
            while not (first.registry.other_routers() and second.registry.other_routers()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert {"2 b"} <= set(first.registry.other_routers())
        assert first.registry.place() < second.registry.place()
        async with aclosing(deltas_of(first.dispatcher, [1, 2, 3], LONG)) as deltas:
            await anext(deltas)
            await second.sees(1)
            assert first.load.others.requests == 0
            assert first.load.requests == 1
        await second.sees(0)


async def test_the_end_of_a_router_ends_its_requests_and_no_others(folder: Path) -> None:
    async with worker(folder, WorkerRole.DECODE, None) as link, router(link, "1 a") as staying:
        seen: list[int] = []
        async with aclosing(deltas_of(staying.dispatcher, [1, 2, 3], LONG)) as deltas:
            seen += (await anext(deltas)).token_ids
            async with (
                router(link, "2 b") as leaving,
                aclosing(deltas_of(leaving.dispatcher, [4, 5, 6], LONG)) as others,
            ):
                await anext(others)
                await staying.sees(1)
                await leaving.registry.__aexit__(None, None, None)
                await staying.sees(0)
            async for delta in deltas:
                seen += delta.token_ids
        assert len(seen) == LONG.max_tokens
        await link.all_pages_back()


async def test_the_requests_of_a_silent_router_are_aborted_and_its_session_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module.Lease.__init__, "__defaults__", (0.5,))
    monkeypatch.setattr("worker.process.service.TURN_S", 0.05)
    async with worker(folder, WorkerRole.DECODE, None) as link:
        channel = connect(link.host.address)
        stub = worker_pb2_grpc.WorkerStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Session(metadata=((ROUTER_METADATA, "0 silent"),))
        await call.write(worker_pb2.Command(submit=worker_pb2.Submit(work=work([1, 2, 3], max_tokens=100))))
        with pytest.raises(grpc.aio.AioRpcError, match=r"the router was silent for 0\.5 s"):
            await asyncio.wait_for(read_all(call), PATIENCE_S)
        await link.all_pages_back()
        await channel.close()
