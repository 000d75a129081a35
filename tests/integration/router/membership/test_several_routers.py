"""Several routers use one worker: each has its requests, knows of the others' load, and ends alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from router.command.admin.drain import WorkerDrainer
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.workers.member import WorkerState
from router.dispatch.workers.registry import Registry, place_among
from router.placement.account.load import WorkerLoad
from rpc.baton.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from rpc.baton.v1.worker_pb2 import ROLE_DECODE
from rpc.channel import connect
from rpc.session import ROUTER_METADATA
from tests.faults.support.local_cluster import LocalWorker
from tests.integration.reading import deltas_of
from tests.integration.tiny_cluster import Link, slow_down, work, worker
from worker.config import WorkerRole
from worker.session import router_session as lease_module

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
async def router(
    *links: Link, name: str, has_ray: Callable[[], bool] = lambda: True
) -> AsyncIterator[Router]:
    handles = [LocalWorker(f"decode-{k}", ROLE_DECODE, link.host) for k, link in enumerate(links)]
    async with Registry(handles, name=name, has_ray=has_ray) as registry:
        assert await registry.wait_for_all(PATIENCE_S)
        dispatcher = ClusterDispatcher(RouterConfig(model="tiny"), registry, RouterMetrics())
        yield Router(registry, dispatcher)


async def read_all(call: Any) -> None:
    async for _ in call:
        pass


async def test_each_router_knows_the_others_and_their_load(folder: Path) -> None:
    async with (
        worker(folder, WorkerRole.DECODE, None) as link,
        router(link, name="1 a") as first,
        router(link, name="2 b") as second,
    ):
        slow_down(link.host, 0.02)
        async with asyncio.timeout(PATIENCE_S):
            while not ("2 b" in first.load.routers and "1 a" in second.load.routers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert place_among([first.registry]) < place_among([second.registry])
        async with aclosing(deltas_of(first.dispatcher, [1, 2, 3], LONG)) as deltas:
            await anext(deltas)
            await second.sees(1)
            assert first.load.others.requests == 0
            assert first.load.requests == 1
        await second.sees(0)


async def test_the_latest_router_leads_while_ray_answers_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.dispatch.workers.session.BEAT_S", 0.05)
    answers = True
    async with (
        worker(folder, WorkerRole.DECODE, None) as link,
        router(link, name="x a") as first,
        router(link, name="y b", has_ray=lambda: answers) as second,
    ):

        async def lead(*routers: Router) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while [r for r in (first, second) if r.registry.leads] != [*routers]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        await lead(second)
        answers = False
        await lead(first)
        assert place_among([first.registry]) == (1, 3), "one without Ray counts: it serves"
        answers = True
        await lead(second)


async def test_the_end_of_a_router_ends_its_requests_and_no_others(folder: Path) -> None:
    async with worker(folder, WorkerRole.DECODE, None) as link, router(link, name="1 a") as staying:
        slow_down(link.host, 0.02)
        seen: list[int] = []
        async with aclosing(deltas_of(staying.dispatcher, [1, 2, 3], LONG)) as deltas:
            seen += (await anext(deltas)).token_ids
            async with (
                router(link, name="2 b") as leaving,
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


async def test_a_drain_through_one_router_waits_for_the_requests_of_the_others(folder: Path) -> None:
    async with (
        worker(folder, WorkerRole.DECODE, None) as first,
        worker(folder, WorkerRole.DECODE, None) as second,
        router(first, second, name="1 a") as draining,
        router(first, second, name="2 b") as other,
    ):
        follower = WorkerDrainer(other.registry, other.dispatcher.migrate_from)
        following = asyncio.create_task(follower.follow())
        slow_down(first.host, 0.02)
        streams = [deltas_of(other.dispatcher, [k, 2, 3], LONG) for k in range(2)]  # one on each worker
        for stream in streams:
            await anext(stream)
        drainer = WorkerDrainer(draining.registry, draining.dispatcher.migrate_from)
        drain = asyncio.create_task(drainer.drain("decode-0", PATIENCE_S))
        drained, staying = other.registry.members()
        assert await other.registry.wait_until(lambda: drained.state is WorkerState.DRAINING, PATIENCE_S), (
            drained.state
        )
        assert staying.usable
        assert not drain.done(), "the worker was ended under another router's requests"
        for stream in streams:
            assert [token async for delta in stream for token in delta.token_ids]
        await drain
        following.cancel()


async def test_a_drain_whose_router_ends_is_over_after_its_time(folder: Path) -> None:
    async with worker(folder, WorkerRole.DECODE, None) as link, router(link, name="1 a") as one:
        (member,) = one.registry.members()
        await link.send(drain=worker_pb2.Drain(seconds=0.3))
        assert await one.registry.wait_until(lambda: member.state is WorkerState.DRAINING, PATIENCE_S)
        assert await one.registry.wait_until(lambda: member.usable, PATIENCE_S)


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
