"""One worker over its actors: when a new one is started, and when a process is killed."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from ray.exceptions import ActorDiedError, RayTaskError

from router.cluster.ray_thread import RayThread
from router.cluster.ray_worker import RayWorker
from router.cluster.record import ClusterRecord
from router.cluster.worker_config.worker_plan import WorkerPlan
from router.dispatch.workers.member import WorkerBroken, WorkerStopped, WorkerUnavailable
from rpc.tls import Identity
from tests.unit.router.cluster.key_values import KeyValues
from worker.config import WorkerRole


class Actor:
    """Answers `start` with what its test says, when it says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.has_ended = False
        self.listening: asyncio.Future[Any] = loop.create_future()
        self.start = SimpleNamespace(remote=lambda: asyncio.shield(self.listening))
        self.stop = SimpleNamespace(remote=self._stop)

    async def _stop(self) -> None:
        pass

    def answer(self) -> None:
        self.listening.set_result(SimpleNamespace(address="a:1", certificate=None, node="A", stages=()))

    def hang(self) -> None:
        self.listening = asyncio.get_running_loop().create_future()

    def die(self, cause: RayTaskError | None = None) -> None:
        """For good; with `cause`, in its constructor."""
        self.has_ended = True
        self.listening.set_exception(ActorDiedError(cause))


class Place:
    """Where a worker lives: every actor that was made there."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.reached = True
        """Whether Ray reaches the node."""
        self.leads = True
        self._loop = asyncio.get_running_loop()
        config = SimpleNamespace(worker_id="decode-0", role=WorkerRole.DECODE, router_timeout_s=60.0)
        self.record = ClusterRecord(KeyValues(), "here")
        self.worker = RayWorker(
            cast(WorkerPlan, SimpleNamespace(config=config)),
            self._find,
            self.record,
            RayThread(),
            identity=Identity.generate(),
            reaches=self._reaches,
            leads=lambda: self.leads,
        )

    async def _reaches(self, node: str) -> bool:
        return self.reached and node == "A"

    def _find(self) -> Actor:
        if not self.actors or self.actors[-1].has_ended:
            self.actors.append(Actor(self._loop))
        return self.actors[-1]


@pytest.fixture(autouse=True)
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    actors: list[Any] = []

    def kill(actor: Actor, no_restart: bool) -> None:
        actors.append(actor)
        actor.has_ended = no_restart

    monkeypatch.setattr(ray, "kill", kill)
    return actors


async def starting(place: Place) -> asyncio.Task[Any]:
    """A call that waits for the actor."""
    task = asyncio.create_task(place.worker.endpoint())
    while place.worker._actor is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_restart_while_a_start_waits_makes_one_new_actor() -> None:
    place = Place()
    start = await starting(place)
    await place.worker.stop()
    await place.worker.revive()
    place.actors[0].die()  # now its caller hears of it
    with pytest.raises(WorkerUnavailable, match="restarted"):
        await start
    assert len(place.actors) == 2


async def test_the_late_answer_of_a_replaced_actor_is_not_its_successors() -> None:
    place = Place()
    start = await starting(place)
    await place.worker.stop()
    await place.worker.revive()
    place.actors[0].listening.set_result(SimpleNamespace(address="old:1", certificate=None))
    with pytest.raises(WorkerUnavailable, match="restarted"):
        await start


async def test_tasks_that_wait_for_a_dead_actor_create_one_new_actor() -> None:
    place = Place()
    starts = [await starting(place), await starting(place)]
    place.actors[0].die()
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {WorkerUnavailable}
    again = [await starting(place), await starting(place)]
    place.actors[1].answer()
    await asyncio.gather(*again)
    assert len(place.actors) == 2


async def test_an_actor_whose_constructor_fails_is_broken_and_created_again() -> None:
    place = Place()
    start = await starting(place)
    place.actors[0].die(RayTaskError("__init__", "no such library", ImportError()))
    with pytest.raises(WorkerBroken):
        await start
    await starting(place)
    assert len(place.actors) == 2


async def test_the_actor_of_another_router_is_found_and_none_is_created() -> None:
    first = Place()
    await starting(first)
    second = Place()
    second.actors = first.actors
    await starting(second)
    assert len(first.actors) == 1


async def test_a_call_that_ray_does_not_answer_blocks_no_other_task(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    release = threading.Event()
    monkeypatch.setattr(ray, "kill", lambda *_, **__: release.wait())
    await starting(place)
    stop = asyncio.create_task(place.worker.stop())
    await asyncio.sleep(0.01)  # would not return
    assert not stop.done()
    release.set()
    await stop


async def test_a_stopped_worker_is_not_revived_by_its_own_death() -> None:
    place = Place()
    start = await starting(place)
    await place.worker.stop()
    place.actors[0].die()
    with pytest.raises(WorkerUnavailable):
        await start
    with pytest.raises(WorkerStopped, match="router restart"):
        await place.worker.endpoint()
    assert len(place.actors) == 1


async def test_a_worker_that_another_router_has_drained_is_not_created() -> None:
    place = Place()
    place.record.keep_stopped("decode-0", True)
    with pytest.raises(WorkerStopped):
        await place.worker.endpoint()
    assert not place.actors


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait counts as the 10 s that it stands for, and ends at once."""

    async def wait_for(answer: Any, _timeout_s: float) -> Any:
        if not answer.done():
            raise TimeoutError
        return await answer

    monkeypatch.setattr(asyncio, "wait_for", wait_for)


async def hung() -> Place:
    """A place whose worker has answered once, and answers no more."""
    place = Place()
    place._find().answer()
    await asyncio.sleep(0)
    await place.worker.endpoint()
    place.actors[0].hang()
    return place


async def complaint(place: Place) -> str:
    with pytest.raises(WorkerUnavailable) as caught:
        await place.worker.endpoint()
    return str(caught.value)


@pytest.mark.usefixtures("impatient")
async def test_a_silent_worker_is_killed_only_after_the_router_timeout(killed: list[Any]) -> None:
    place = await hung()
    for _ in range(5):
        assert "--router-timeout 60 s" in await complaint(place)
    assert not killed
    assert "is restarted" in await complaint(place)
    assert killed == [place.actors[0]]


@pytest.mark.usefixtures("impatient")
async def test_only_one_of_several_routers_kills_a_silent_worker(killed: list[Any]) -> None:
    place = await hung()
    place.leads = False
    for _ in range(10):
        await complaint(place)
    assert not killed
    place.leads = True
    await complaint(place)
    assert killed == [place.actors[0]]


@pytest.mark.usefixtures("impatient")
async def test_a_worker_that_ray_does_not_reach_either_is_never_killed(killed: list[Any]) -> None:
    place = await hung()
    place.reached = False
    for _ in range(50):
        assert "Ray does not reach" in await complaint(place)
    place.reached = True
    for _ in range(5):
        await complaint(place)  # counted from now on
    assert not killed


@pytest.mark.usefixtures("impatient")
async def test_a_worker_that_answers_again_is_not_killed(killed: list[Any]) -> None:
    place = await hung()
    for _ in range(3):
        for _ in range(5):
            await complaint(place)
        place.actors[0].answer()
        await place.worker.endpoint()
        place.actors[0].hang()
    assert not killed
