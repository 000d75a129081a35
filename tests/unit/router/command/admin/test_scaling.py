"""What one router does about a changed number of workers: all of it if it leads, and its part otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from router.cluster.fleet import WantedWorkers
from router.command.admin.drain import NotBackInTime, OperationFailed, WorkerDrainer
from router.command.admin.scaling import CannotScale, Scaling, Superseded
from router.dispatch.workers.member import WorkerUnavailable
from router.dispatch.workers.registry import Registry
from rpc.baton.v1 import worker_pb2
from rpc.channel import Endpoint
from worker.config import WorkerRole

PREFILL, DECODE = WorkerRole.PREFILL, WorkerRole.DECODE


@dataclass
class Handle:
    """A worker that never answers."""

    worker_id: str
    supply: Supply
    role: worker_pb2.Role = worker_pb2.ROLE_DECODE

    async def endpoint(self) -> Endpoint:
        raise WorkerUnavailable("loading")

    async def drain(self, seconds: float) -> None:
        assert self.worker_id in self.supply.alive
        self.supply.drained.append(self.worker_id)

    async def stop(self) -> None:
        if self.supply.is_silent:
            raise OSError("Ray does not answer")
        self.supply.alive.discard(self.worker_id)

    async def revive(self) -> None:
        raise AssertionError


@dataclass
class Supply:
    """Ray, as all routers of a cluster see it."""

    roles: tuple[WorkerRole, ...] = (DECODE,)
    alive: set[str] = field(default_factory=set)
    given_back: list[str] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    is_silent: bool = False
    room: int = 100

    def __post_init__(self) -> None:
        self.workers = {role: WantedWorkers.first(role, 2) for role in self.roles}
        self.alive |= {name for workers in self.workers.values() for name in workers.worker_ids}

    async def wanted(self) -> Mapping[WorkerRole, WantedWorkers]:
        return dict(self.workers)

    async def want(self, role: WorkerRole, workers: WantedWorkers) -> None:
        self.workers[role] = workers

    async def actors(self) -> set[str]:
        return set(self.alive)

    async def lacks_room(self, counts: Mapping[WorkerRole, int]) -> str:
        return "" if sum(counts.values()) <= self.room else "no room"

    async def give_back(self, worker_id: str) -> None:
        self.given_back.append(worker_id)

    def keeps_room(self, worker_id: str) -> bool:
        return worker_id.endswith(("-0", "-1"))

    def handle(self, worker_id: str) -> Handle:
        return Handle(worker_id, self)

    def settings_digest(self, worker_id: str) -> str:
        return ""


class Following(Registry):
    """Registry of a router that does not lead."""

    leads = False  # type: ignore[assignment]


@asynccontextmanager
async def router(supply: Supply, kind: type[Registry] = Registry, **settings: bool) -> AsyncIterator[Scaling]:
    handles = [supply.handle(name) for workers in supply.workers.values() for name in workers.worker_ids]
    async with kind(handles) as registry:
        yield Scaling(supply, registry, WorkerDrainer(registry), drain_timeout_s=0.0, **settings)


def names(scaling: Scaling) -> set[str]:
    return {member.handle.worker_id for member in scaling._registry.members()}


async def retired(scaling: Scaling) -> None:
    while scaling._retiring:
        await asyncio.gather(*scaling._retiring.values())


async def test_a_router_connects_to_the_workers_that_another_one_has_asked_for() -> None:
    supply = Supply()
    async with router(supply) as first, router(supply, Following) as second:
        await first.request(DECODE, 3)
        await second.adjust()
        assert names(first) == names(second) == {"decode-0", "decode-1", "decode-2"}
        assert (second.desired(DECODE), second.ready(DECODE)) == (3, 0)


async def test_only_the_router_that_leads_ends_workers_and_the_others_forget_them() -> None:
    supply = Supply()
    async with router(supply) as leading, router(supply, Following) as other:
        await other.request(DECODE, 1)
        assert supply.alive == {"decode-0", "decode-1"}
        assert names(other) == {"decode-0"}
        await leading.adjust()
        await retired(leading)
        assert supply.alive == names(leading) == {"decode-0"}
        assert supply.given_back == ["decode-1"]


async def test_a_worker_that_another_router_did_not_end_in_time_is_ended() -> None:
    supply = Supply()
    async with router(supply) as scaling:
        supply.alive.add("decode-7")
        await scaling.adjust()
        assert not scaling._retiring, "it may have requests that could move, if it is connected first"
        await scaling.adjust()
        await retired(scaling)
        assert supply.alive == names(scaling) == {"decode-0", "decode-1"}


async def test_requests_of_other_routers_move_off_a_worker_of_another_version_before_it_ends() -> None:
    supply = Supply()
    async with router(supply) as scaling:
        for member in scaling._registry.members():
            member.is_outdated = True
        await scaling.request(DECODE, 1)
        await retired(scaling)
        assert supply.alive == {"decode-0"}
        assert supply.drained == ["decode-1"]


async def test_an_end_that_fails_is_tried_again() -> None:
    supply = Supply(is_silent=True)
    async with router(supply) as scaling:
        await scaling.request(DECODE, 1)
        await retired(scaling)
        assert "decode-1" in names(scaling)
        supply.is_silent = False
        await scaling.adjust()
        await retired(scaling)
        assert names(scaling) == {"decode-0"}


async def test_the_name_of_a_worker_that_still_ends_is_not_used_again() -> None:
    supply = Supply(is_silent=True)
    async with router(supply) as scaling:
        await scaling.request(DECODE, 1)
        await retired(scaling)
        await scaling.request(DECODE, 2)
        assert supply.workers[DECODE].worker_ids == ("decode-0", "decode-2")


async def test_a_number_that_is_not_reached_in_time_stays_wanted() -> None:
    supply = Supply()
    async with router(supply) as scaling:
        with pytest.raises(NotBackInTime, match=r"0 of 3 decode workers are ready .*decode-2 loading"):
            await scaling.scale(DECODE, 3, 0.5)
        assert scaling.desired(DECODE) == 3


async def test_an_operator_learns_that_ray_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(_supply: Supply) -> Mapping[WorkerRole, WantedWorkers]:
        raise OSError("Deadline Exceeded")

    supply = Supply()
    async with router(supply) as scaling:
        monkeypatch.setattr(Supply, "wanted", silent)
        with pytest.raises(OperationFailed, match="Ray does not answer: Deadline Exceeded; scale again"):
            await scaling.scale(DECODE, 3, 0.5)
        assert supply.workers[DECODE] == WantedWorkers.first(DECODE, 2)


@pytest.mark.parametrize(
    ("role", "number", "words"),
    [
        (PREFILL, 2, "no prefill workers in this mode"),
        (DECODE, 0, "--autoscale"),
        (DECODE, 101, "no room"),
        (DECODE, 1_000_000, "use 0 to 1024"),
    ],
)
async def test_a_number_that_cannot_be_is_refused(role: WorkerRole, number: int, words: str) -> None:
    supply = Supply()
    async with router(supply) as scaling:
        with pytest.raises(CannotScale, match=words):
            await scaling.request(role, number)
        assert len(supply.workers[DECODE].worker_ids) == 2


async def test_the_last_worker_may_go_if_another_role_or_a_wake_up_remains() -> None:
    supply = Supply(roles=(PREFILL, DECODE))
    async with router(supply) as scaling:
        await scaling.request(PREFILL, 0)
        with pytest.raises(CannotScale):
            await scaling.request(DECODE, 0)
    supply = Supply()
    async with router(supply, may_wake=True) as scaling:
        await scaling.request(DECODE, 0)
        await retired(scaling)
        assert not supply.alive


async def test_the_router_whose_change_was_overtaken_says_so() -> None:
    supply = Supply()
    async with router(supply) as first, router(supply, Following) as second:
        running = asyncio.create_task(first.run())
        losing = asyncio.create_task(first.scale(DECODE, 3, 10.0))
        await asyncio.sleep(0.1)
        await second.request(DECODE, 1)
        with pytest.raises(Superseded, match="1 decode workers are wanted now, not 3"):
            await losing
        running.cancel()


async def test_a_router_learns_that_the_workers_of_its_cluster_were_ended() -> None:
    supply = Supply()
    async with router(supply) as scaling:
        await scaling.adjust()
        assert not scaling.ended.is_set()
        supply.workers, supply.alive = {}, set()
        await scaling.adjust()
        assert scaling.ended.is_set()
        assert not scaling._retiring
        with pytest.raises(CannotScale, match="were ended"):
            await scaling.scale(DECODE, 1, 0.5)
