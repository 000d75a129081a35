"""Changes the number of workers of a running cluster.

What routers agree on is kept in Ray: the workers that the cluster is to have. Every router reads it, connects
to those that it does not know yet, which starts them, and forgets those that have left. Workers that are not
wanted any more are drained and ended by the router that leads. So a change may come through any router, and
one that ends half-way is completed by another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol

from common.background import repeat, supervised
from common.error_text import first_line
from router.cluster.fleet import WantedWorkers, role_of
from router.command.admin.drain import NotBackInTime, OperationFailed, WorkerDrainer
from router.dispatch.workers.member import Member, WorkerHandle
from router.dispatch.workers.registry import Registry
from worker.config import WorkerRole

_log = logging.getLogger(__name__)

MAX_WORKERS: Final = 1024
"""Most workers of a role in one command: a typo would leave a placement group in Ray for each."""
_LOOK_S: Final = 1.0
"""Interval of reading what the cluster is to have."""


class CannotScale(Exception):
    """The number of workers cannot be that; the message says why."""


class Superseded(Exception):
    """Another change of the number of workers came later, and counts."""


class Supply(Protocol):
    """The part of `Cluster` that is used here. Raises what Ray raises if it does not answer."""

    @property
    def roles(self) -> Collection[WorkerRole]: ...

    async def wanted(self) -> Mapping[WorkerRole, WantedWorkers]: ...

    async def want(self, role: WorkerRole, workers: WantedWorkers) -> None: ...

    async def actors(self) -> Collection[str]: ...

    async def lacks_room(self, counts: Mapping[WorkerRole, int]) -> str: ...

    async def give_back(self, worker_id: str) -> None: ...

    def keeps_room(self, worker_id: str) -> bool: ...

    def handle(self, worker_id: str) -> WorkerHandle: ...

    def settings_digest(self, worker_id: str) -> str: ...


class Scaling:
    """Keeps the registry's workers those that the cluster is to have, while `run` runs."""

    def __init__(
        self,
        supply: Supply,
        registry: Registry,
        drainer: WorkerDrainer,
        *,
        drain_timeout_s: float,
        may_wake: bool = False,
        on_gone: Callable[[str], object] = lambda _worker_id: None,
    ) -> None:
        """`may_wake`: something starts workers when there are none and requests wait. `on_gone` is called
        with the name of each worker that has left."""
        self._supply = supply
        self._registry = registry
        self._drainer = drainer
        self._drain_timeout_s = drain_timeout_s
        self._may_wake = may_wake
        self._on_gone = on_gone
        self._wanted: Mapping[WorkerRole, WantedWorkers] = {}
        self.ended: Final = asyncio.Event()
        """Set when the workers of the cluster were ended, through another router."""
        self._retiring: dict[str, asyncio.Task[None]] = {}
        self._adjusting = asyncio.Lock()

    async def run(self) -> None:
        """Adjust for ever; errors of Ray are logged once each."""
        try:
            await repeat(self.adjust, _LOOK_S, _log, "Ray cannot say which workers there are to be")
        finally:
            for task in self._retiring.values():
                task.cancel()

    @property
    def roles(self) -> Collection[WorkerRole]:
        """Roles that workers have in this mode."""
        return self._supply.roles

    @property
    def has_looked(self) -> bool:
        """Whether it is known what the cluster is to have."""
        return bool(self._wanted)

    def desired(self, role: WorkerRole) -> int:
        """Workers of this role that the cluster is to have, as last read."""
        return len(self._wanted_of(role))

    def ready(self, role: WorkerRole) -> int:
        """Number of workers of the role that this router can use now."""
        return sum(
            member.usable for member in self._members_of(role) if _name(member) in self._wanted_of(role)
        )

    async def scale(self, role: WorkerRole, number: int, startup_s: float) -> list[str]:
        """Let the cluster have that many workers of a role; returns their names when all are ready.

        The surplus is drained: idle and unready workers first, and rather those whose room in Ray becomes
        free. Raises CannotScale; OperationFailed if Ray does not answer; Superseded if another change came
        later; and NotBackInTime after `startup_s`, when the number stays as it was asked.
        """
        try:
            await self.request(role, number)
        except CannotScale:
            raise
        except Exception as error:  # Ray's errors share no base class
            raise OperationFailed(
                f"the number of {role.value} workers may be what it was, since Ray does not answer:"
                f" {first_line(error)}; scale again"
            ) from error

        def is_over() -> bool:
            return self.desired(role) != number or self._is_settled(role)

        is_settled = await self._registry.wait_until(is_over, startup_s)
        if self.desired(role) != number:
            raise Superseded(
                f"another change came later: {self.desired(role)} {role.value} workers are wanted now, not"
                f" {number}; see `router workers`"
            )
        if not is_settled:
            there = ", ".join(
                f"{_name(m)} {m.trouble or m.state.value}" for m in self._members_of(role) if not m.usable
            )
            raise NotBackInTime(
                f"{self.ready(role)} of {self.desired(role)} {role.value} workers are ready after"
                f" {startup_s:g} s; the others are still wanted: {there}"
            )
        return list(self._wanted_of(role))

    async def request(self, role: WorkerRole, number: int) -> None:
        """As `scale`, but does not wait for workers."""
        wanted = dict(await self._supply.wanted())
        if not wanted:
            raise CannotScale("the workers of this cluster were ended, and so does this router")
        counts = {one: len(workers.worker_ids) for one, workers in wanted.items()} | {role: number}
        await self._check(role, counts)
        leaving = [_name(member) for member in self._members_of(role)]
        changed = wanted[role].resized(role, number, self._worth, leaving)
        if changed != wanted[role]:
            _log.info(
                "%s workers: %d, before %d: %s",
                role.value,
                number,
                len(wanted[role].worker_ids),
                ", ".join(changed.worker_ids) or "none",
            )
            await self._supply.want(role, changed)
        await self.adjust()

    async def _check(self, role: WorkerRole, counts: Mapping[WorkerRole, int]) -> None:
        """Raises CannotScale."""
        if role not in self._supply.roles:
            with_flag = "; start with --encode-workers" if role is WorkerRole.ENCODE else ""
            raise CannotScale(
                f"there are no {role.value} workers in this mode{with_flag or '; scale decode'}"
            )
        if not 0 <= counts[role] <= MAX_WORKERS:
            raise CannotScale(f"{counts[role]} workers: use 0 to {MAX_WORKERS}")
        computing = sum(count for one, count in counts.items() if one is not WorkerRole.ENCODE)
        if not computing and not self._may_wake:
            raise CannotScale(
                "no worker would be left, and none would start; use --autoscale with a minimum of 0"
            )
        if reason := await self._supply.lacks_room(counts):
            raise CannotScale(reason)

    async def adjust(self) -> None:
        """One look at what the cluster is to have. Raises what Ray raises."""
        async with self._adjusting:
            self._wanted = await self._supply.wanted()
            if not self._wanted:
                self.ended.set()
                return
            names = {name for workers in self._wanted.values() for name in workers.worker_ids}
            leads = self._registry.leads
            # A worker whose drain another router has begun, and not completed.
            left_over = set(await self._supply.actors()) - names if leads else set()
            known = {_name(member) for member in self._registry.members()}
            for name in sorted((names | left_over) - known):
                await self._registry.add(self._supply.handle(name), self._supply.settings_digest(name))
            for member in self._registry.members():
                name = _name(member)
                # One that was added just now may have requests: the next look finds it connected.
                if name in names or name in self._retiring or name not in known:
                    continue
                if leads:
                    self._retiring[name] = supervised(self._retire(member), f"retire {name}")
                elif member.session is None:
                    await self._forget(member)
        await self._registry.reconsider()

    async def _retire(self, member: Member) -> None:
        """Drain a worker, end it, and give its room back; what fails is tried again after the next look."""
        name = _name(member)
        try:
            await self._drainer.drain(name, self._drain_timeout_s, force=True)
            await self._supply.give_back(name)
            await self._forget(member)
        except Exception as error:  # Ray's errors share no base class
            _log.warning("%s, which is not wanted any more, was not ended: %s", name, error)
        finally:
            del self._retiring[name]

    async def _forget(self, member: Member) -> None:
        await self._registry.remove(member)
        self._on_gone(_name(member))

    def _worth(self, name: str) -> Any:
        """In service, in the room that stays reserved, with many requests: workers that stay."""
        member = next((m for m in self._registry.members() if _name(m) == name), None)
        session = None if member is None else member.session
        in_service = member is not None and member.usable
        return in_service, self._supply.keeps_room(name), 0 if session is None else session.load.requests

    def _is_settled(self, role: WorkerRole) -> bool:
        members, wanted = self._members_of(role), self._wanted_of(role)
        return {_name(m) for m in members} == set(wanted) and all(m.usable or m.is_stopped for m in members)

    def _wanted_of(self, role: WorkerRole) -> tuple[str, ...]:
        return self._wanted[role].worker_ids if role in self._wanted else ()

    def _members_of(self, role: WorkerRole) -> list[Member]:
        """Members that were started with this role."""
        return [member for member in self._registry.members() if role_of(_name(member)) is role]


def _name(member: Member) -> str:
    return member.handle.worker_id
