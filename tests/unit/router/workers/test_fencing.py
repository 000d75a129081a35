"""Which lost workers Ray is asked about, and until when."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from router.workers.fencing import Fencing
from rpc.baton.v1 import worker_pb2


def session(epoch: int, node: str = "A", worker_id: str = "decode-0") -> Mock:
    return Mock(info=worker_pb2.WorkerInfo(worker_id=worker_id, epoch=epoch, node=node))


class Ray:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[set[str]] = asyncio.get_running_loop().create_future()

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


async def test_after_a_restart_on_a_living_node_ray_is_asked_no_more() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ask_s=0.0) as fencing:
        first, second, third = (session(epoch) for epoch in (1, 2, 3))
        fencing.begun(first)
        for before, after in ((first, second), (second, third)):
            fencing.ended(before)
            fencing.begun(after)
        await ray.says()
        assert not ray.asked.is_set()
        fencing.ended(third)
        await ray.asked.wait()
        third.send.assert_not_called()


async def test_a_lost_worker_is_asked_about_until_it_is_back() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ask_s=0.0) as fencing:
        lost = session(1)
        fencing.begun(lost)
        fencing.ended(lost)
        await ray.says()
        assert ray.asked.is_set()
        fencing.begun(session(2))
        await ray.says()  # asked before the restart: the answer may be older
        await ray.says()
        assert not ray.asked.is_set()


async def test_a_worker_whose_node_died_is_fenced_though_it_runs_elsewhere_already() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ask_s=0.0) as fencing:
        lost, successor = session(1), session(2, node="B")
        fencing.begun(lost)
        fencing.ended(lost)
        await ray.asked.wait()
        fencing.begun(successor)
        await ray.says()  # asked before Ray noticed
        await ray.says("A")
        (command,) = [call.args[0] for call in successor.send.call_args_list]
        assert command.fence.epoch == 1
        assert not ray.asked.is_set()


async def test_ray_is_not_asked_about_a_worker_without_a_node() -> None:
    ray = Ray()
    async with Fencing(ray.dead_nodes, ask_s=0.0) as fencing:
        lost = session(1, node="")
        fencing.begun(lost)
        fencing.ended(lost)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not ray.asked.is_set()
