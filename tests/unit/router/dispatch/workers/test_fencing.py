"""Which processes are fenced, and about which Ray is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import Mock

from router.dispatch.workers.fencing import Fencing, Incarnation
from rpc.baton.v1 import worker_pb2


def session(epoch: int, node: str = "A", worker_id: str = "decode-0") -> Mock:
    return Mock(info=worker_pb2.WorkerInfo(worker_id=worker_id, epoch=epoch, node=node))


class Ray:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[set[str]] = asyncio.get_running_loop().create_future()
        self.kept: dict[str, Incarnation] = {}

    async def incarnations(self) -> list[Incarnation]:
        return list(self.kept.values())

    async def keep_incarnation(self, incarnation: Incarnation) -> None:
        self.kept[incarnation.worker_id] = incarnation

    async def dead_nodes(self) -> set[str]:
        self.asked.set()
        return await self.answer

    async def says(self, *dead: str) -> None:
        """Answers the question that is open, and lets the answer be acted on."""
        await self.asked.wait()
        self.asked.clear()
        answer, self.answer = self.answer, asyncio.get_running_loop().create_future()
        answer.set_result(set(dead))
        for _ in range(5):
            await asyncio.sleep(0)


def fences(session: Mock) -> list[int]:
    """Epochs."""
    return [call.args[0].fence.epoch for call in session.send.call_args_list]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_what_was_lost_while_no_router_ran_is_fenced_by_the_next_one() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ray, ask_s=0.0) as before:
        for known in (session(1), session(2, "B", "decode-1"), session(3, "C", "decode-2")):
            before.begun(known)
        await until(lambda: len(ray.kept) == 3)
    # Without a router: decode-0 is replaced, decode-1 is lost with its node, and decode-2 stays.
    async with Fencing(ray.dead_nodes, ray, ask_s=0.0) as fencing:
        peer = session(3, "C", "decode-2")
        fencing.begun(peer)
        fencing.begun(session(4, "C"))
        await ray.says("B")
        await until(lambda: sorted(fences(peer)) == [1, 2])


async def test_a_replaced_process_is_fenced_whatever_its_node_does_later() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ray, ask_s=0.0) as fencing:
        peer, first, second, third = session(9, "B", "prefill-0"), *(session(epoch) for epoch in (1, 2, 3))
        for begun in (peer, first):
            fencing.begun(begun)
        for before, after in ((first, second), (second, third)):
            fencing.ended(before)
            fencing.begun(after)
        await until(lambda: fences(peer) == [1, 2])
        assert not ray.asked.is_set()  # each has a successor: nothing depends on a node


async def test_peers_have_time_to_detect_the_end_before_a_replaced_process_is_fenced() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ray, ask_s=3600.0) as fencing:
        first, second = session(1), session(2)
        fencing.begun(first)
        fencing.ended(first)
        fencing.begun(second)
        for _ in range(10):
            await asyncio.sleep(0)
        assert fences(second) == []


async def test_a_drained_worker_is_fenced_and_ray_is_asked_no_more() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ray, ask_s=0.0) as fencing:
        drained, peer = session(1), session(2, "B", "prefill-0")
        fencing.begun(drained)
        fencing.begun(peer)
        fencing.ended(drained)
        fencing.stopped("decode-0")
        await until(lambda: fences(peer) == [1])
        assert not ray.asked.is_set()


async def test_a_lost_worker_is_asked_about_until_it_is_replaced() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ray, ask_s=0.0) as fencing:
        lost, successor = session(1), session(2)
        fencing.begun(lost)
        fencing.ended(lost)
        await ray.says()
        assert ray.asked.is_set()
        fencing.begun(successor)
        await ray.says()
        await until(lambda: fences(successor) == [1])
        assert not ray.asked.is_set()


async def test_a_process_that_comes_back_is_not_fenced() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ray, ask_s=0.0) as fencing:
        unreachable, peer = session(1), session(2, "B", "prefill-0")
        fencing.begun(unreachable)
        fencing.begun(peer)
        fencing.ended(unreachable)
        await ray.says()
        fencing.begun(unreachable)
        await ray.says("A")
        for _ in range(10):
            await asyncio.sleep(0)
        assert fences(peer) == []


async def test_a_worker_whose_node_died_is_fenced_once_though_it_runs_elsewhere_already() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ray, ask_s=0.0) as fencing:
        lost, successor = session(1), session(2, node="B")
        fencing.begun(lost)
        fencing.ended(lost)
        await ray.asked.wait()
        fencing.begun(successor)
        await ray.says("A")
        for _ in range(10):
            await asyncio.sleep(0)
        assert fences(successor) == [1]
        assert not ray.asked.is_set()


async def test_a_process_that_was_away_gets_the_fences_that_it_missed() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ray, ask_s=0.0) as fencing:
        away, peer = session(1), session(2, "B", "prefill-0")
        fencing.begun(away)
        fencing.begun(peer)
        fencing.ended(away)
        fencing.ended(peer)
        await ray.says("B")
        back = session(1)
        fencing.begun(back)
        assert fences(back) == [2]


async def test_ray_is_not_asked_about_a_worker_without_a_node() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ray, ask_s=0.0) as fencing:
        lost = session(1, node="")
        fencing.begun(lost)
        fencing.ended(lost)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not ray.asked.is_set()


async def test_ray_is_asked_no_more_about_a_worker_that_another_router_has_ended() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ray, ask_s=0.0) as fencing:
        gone = session(1)
        fencing.begun(gone)
        fencing.ended(gone)
        fencing.left("decode-0")
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ray.asked.is_set()
