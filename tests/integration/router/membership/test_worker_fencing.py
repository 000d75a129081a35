"""When Ray declares a node dead, every other worker is told which of its peers will not come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from router.command.admin.drain import WorkerDrainer
from router.dispatch.workers.fencing import Fencing, Incarnation, newly_dead
from router.dispatch.workers.registry import Registry
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL
from tests.integration.fake_worker import FakeWorker

PATIENCE_S = 5.0


class Ray:
    """What it says of nodes. It may not answer."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.asked = 0
        self.breaks = False

    async def incarnations(self) -> list[Incarnation]:
        return []

    async def keep_incarnation(self, incarnation: Incarnation) -> None:
        pass

    async def dead_nodes(self) -> set[str]:
        self.asked += 1
        if self.breaks:
            raise RuntimeError("GCS is not there")
        return self.dead


@asynccontextmanager
async def cluster(ray: Ray) -> AsyncIterator[tuple[Registry, FakeWorker, FakeWorker]]:
    """A prefill worker on node A, a decode worker on node B."""
    prefill = FakeWorker("prefill-0", ROLE_PREFILL, node="A")
    decode = FakeWorker("decode-0", ROLE_DECODE, node="B")
    async with AsyncExitStack() as stack:
        for worker in (prefill, decode):
            await worker.start()
            stack.push_async_callback(worker.stop)
        fencing = await stack.enter_async_context(Fencing(ray.dead_nodes, ray, ask_s=0.01))
        registry = await stack.enter_async_context(Registry([prefill, decode], fencing=fencing))
        assert await registry.wait_for_all(PATIENCE_S), registry.complaints()
        yield registry, prefill, decode


async def fences(worker: FakeWorker, count: int = 1) -> list[worker_pb2.Fence]:
    async with asyncio.timeout(PATIENCE_S):
        while len(worker.commands("fence")) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return [command.fence for command in worker.commands("fence")]


async def asked_again(ray: Ray) -> None:
    before = ray.asked
    async with asyncio.timeout(PATIENCE_S):
        while ray.asked < before + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_lost_worker_is_dead_only_if_its_node_is() -> None:
    lost = [Incarnation("p-0", 1, "A"), Incarnation("p-1", 2, "B"), Incarnation("p-2", 3, "")]
    assert newly_dead(lost, {"A", "C", ""}) == lost[:1]
    assert newly_dead(lost, set()) == []


async def test_peers_of_a_worker_on_a_dead_node_get_a_fence_with_its_epoch() -> None:
    ray = Ray()
    async with cluster(ray) as (_, prefill, decode):
        epoch = prefill.epoch
        await prefill.stop()
        ray.dead.add("A")
        (fence,) = await fences(decode)
        assert (fence.worker_id, fence.epoch) == ("prefill-0", epoch)
        assert "A" in fence.reason


async def test_a_worker_that_is_stopped_or_out_of_reach_is_not_fenced_while_its_node_lives() -> None:
    ray = Ray()
    async with cluster(ray) as (registry, prefill, decode):
        prefill.behaviour.dumb = True
        assert await registry.wait_until(lambda: not registry.ready(ROLE_PREFILL), PATIENCE_S)
        await asked_again(ray)
        prefill.behaviour.dumb = False
        assert await registry.wait_for(ROLE_PREFILL, PATIENCE_S)
        ray.dead.add("A")  # of which a session says the contrary
        decode.behaviour.dumb = True
        assert await registry.wait_until(lambda: not registry.ready(ROLE_DECODE), PATIENCE_S)
        await asked_again(ray)
        assert decode.commands("fence") == prefill.commands("fence") == []


async def test_a_worker_that_connects_after_a_fence_gets_it_first() -> None:
    ray = Ray()
    async with cluster(ray) as (registry, prefill, decode):
        epoch = prefill.epoch
        decode.behaviour.dumb = True
        assert await registry.wait_until(lambda: not registry.ready(ROLE_DECODE), PATIENCE_S)
        await prefill.stop()
        ray.dead.add("A")
        await asked_again(ray)
        decode.behaviour.dumb = False
        assert [fence.epoch for fence in await fences(decode)] == [epoch]


async def test_peers_of_a_worker_whose_process_was_replaced_get_a_fence_though_its_node_lives() -> None:
    ray = Ray()
    async with cluster(ray) as (_, prefill, decode):
        epoch = prefill.epoch
        await prefill.restart()
        assert [fence.epoch for fence in await fences(decode)] == [epoch]


async def test_peers_of_a_drained_worker_get_a_fence_and_ray_is_asked_no_more() -> None:
    ray = Ray()
    async with cluster(ray) as (registry, prefill, decode):
        epoch = prefill.epoch
        await WorkerDrainer(registry).drain("prefill-0", 0.0, force=True)
        assert [fence.epoch for fence in await fences(decode)] == [epoch]
        before = ray.asked
        await asyncio.sleep(0.1)  # ten intervals
        assert ray.asked == before


async def test_ray_is_asked_again_when_it_does_not_answer() -> None:
    ray = Ray()
    async with cluster(ray) as (_, prefill, decode):
        ray.breaks = True
        await prefill.stop()
        await asked_again(ray)
        ray.breaks = False
        ray.dead.add("A")
        await fences(decode)
