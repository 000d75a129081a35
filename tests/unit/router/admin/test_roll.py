"""Workers with other settings are restarted in turn, and the first that fails is the last."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from router.admin.drain import NotBackInTime, WorkerDrainer
from router.admin.roll import Roll
from router.workers.registry import Registry


class Worker(SimpleNamespace):
    """A member of the registry."""

    def __init__(self, worker_id: str, *, serves: bool) -> None:
        super().__init__(
            handle=SimpleNamespace(worker_id=worker_id),
            session=object() if serves else None,
            usable=serves,
            is_outdated=True,
            is_stopped=False,
        )


class Cluster:
    """Registry and drainer: a restart takes a turn of the loop, and then the worker has the new settings."""

    def __init__(self, *workers: Worker, broken: str = "") -> None:
        self.workers = workers
        self._broken = broken
        self.restarted: list[list[str]] = []
        """By turn: those that were out of service together."""
        self._out: list[str] = []

    def members(self) -> tuple[Worker, ...]:
        return self.workers

    def all_ready(self) -> bool:
        return all(worker.usable for worker in self.workers)

    async def wait_until(self, condition: Any, timeout_s: float) -> bool:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
        return True

    async def restart(self, worker_id: str, timeout_s: float, startup_s: float, *, force: bool) -> int:
        [worker] = [w for w in self.workers if w.handle.worker_id == worker_id]
        others = any(w.usable for w in self.workers if w is not worker)
        assert others or force, "the last worker was drained without being told to"
        worker.usable = False
        self._out.append(worker_id)
        await asyncio.sleep(0)
        if self._out:
            self.restarted.append(sorted(self._out))
            self._out = []
        if worker_id == self._broken:
            raise NotBackInTime(worker_id)
        worker.usable, worker.is_outdated = True, False
        return 0

    async def roll(self) -> list[list[str]]:
        registry, drainer = cast(Registry, self), cast(WorkerDrainer, self)
        await Roll(registry, drainer, drain_timeout_s=1.0, startup_timeout_s=1.0).run()
        return self.restarted


async def test_workers_that_can_serve_are_restarted_one_by_one() -> None:
    assert await Cluster(Worker("a", serves=True), Worker("b", serves=True)).roll() == [["a"], ["b"]]


async def test_workers_that_cannot_serve_are_restarted_together_and_before_others() -> None:
    assert await Cluster(Worker("a", serves=False), Worker("b", serves=False)).roll() == [["a", "b"]]
    assert await Cluster(Worker("a", serves=True), Worker("b", serves=False)).roll() == [["b"], ["a"]]


async def test_a_worker_that_does_not_come_back_ends_the_roll() -> None:
    cluster = Cluster(Worker("a", serves=True), Worker("b", serves=True), broken="a")
    assert await cluster.roll() == [["a"]]
    assert cluster.workers[1].usable


async def test_a_drained_worker_is_left_alone() -> None:
    cluster = Cluster(Worker("a", serves=True), Worker("b", serves=False))
    cluster.workers[1].is_stopped = True
    cluster.workers[1].usable = True
    assert await cluster.roll() == [["a"]]
