"""Workers with other settings are restarted in turn, and the first that fails is the last."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.command.admin.drain import NotBackInTime, WorkerDrainer
from router.command.admin.roll import Roll
from router.dispatch.workers.registry import Registry


class RpcError(Exception):
    """As Ray's errors, which share no base class."""


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

    def __init__(self, *workers: Worker, broken: str = "", users: int = 0) -> None:
        """`users`: how often another router is found connected to workers that cannot serve this one."""
        self.workers = workers
        self._broken = broken
        self._users = users
        self.unanswered = 0
        """How often Ray does not answer."""
        self.restarted: list[list[str]] = []
        """Workers that were out of service together, by turn."""
        self._out: list[str] = []

    def members(self) -> tuple[Worker, ...]:
        return self.workers

    def all_ready(self) -> bool:
        return all(worker.usable for worker in self.workers)

    async def wait_until(self, condition: Any, timeout_s: float) -> bool:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
        return True

    async def routers(self, worker_ids: Collection[str]) -> list[str]:
        assert all(w.session is None for w in self.workers if w.handle.worker_id in worker_ids)
        if self.unanswered:
            self.unanswered -= 1
            raise RpcError("the GCS restarts")
        self._users -= 1
        return ["old"] if self._users >= 0 else []

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
        worker.usable, worker.is_outdated, worker.session = True, False, object()
        return 0

    async def roll(self) -> list[list[str]]:
        registry, drainer = cast(Registry, self), cast(WorkerDrainer, self)
        await Roll(registry, drainer, self, drain_timeout_s=1.0, startup_timeout_s=1.0).run()
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


def foreign(count: int) -> list[Worker]:
    return [Worker(name, serves=False) for name in "abc"[:count]]


async def test_workers_that_other_routers_use_are_restarted_one_by_one_and_the_last_when_those_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.command.admin.roll._ASK_S", 0.0)
    cluster = Cluster(*foreign(3), users=4)
    roll = asyncio.create_task(cluster.roll())
    while cluster._users > 1:
        assert cluster.workers[2].session is None, "the last one was taken from the other router"
        await asyncio.sleep(0)
    assert await roll == [["a"], ["b"], ["c"]]


async def test_the_only_worker_is_restarted_though_another_router_uses_it() -> None:
    assert await Cluster(*foreign(1), users=100).roll() == [["a"]]


async def test_a_ray_that_does_not_answer_delays_the_roll_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("router.command.admin.roll._ASK_S", 0.0)
    cluster = Cluster(*foreign(2))
    cluster.unanswered = 3
    assert await cluster.roll() == [["a", "b"]]
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        "workers with other settings are not restarted yet: the GCS restarts"
    ]
