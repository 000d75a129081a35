"""Drain or restart a worker without failing requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from router.workers.member import Member
from router.workers.registry import Registry
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2

__all__ = [
    "Able",
    "CannotChangeRole",
    "Evacuate",
    "LastOfItsRole",
    "NoSuchWorker",
    "NotBackInTime",
    "WorkerDrainer",
]

Able: TypeAlias = Callable[[worker_pb2.Role], list[WorkerSession]]
Evacuate: TypeAlias = Callable[[str, float], Awaitable[int]]
"""(worker, time limit in seconds) -> number of running answers that moved to other workers with their KV."""

_AGAIN_S: Final = 0.2
"""Interval of further attempts: for requests whose prefill has ended since, or that found no room before."""


async def _nothing_moves(worker_id: str, timeout_s: float) -> int:
    return 0


_log = logging.getLogger(__name__)


class NoSuchWorker(Exception):
    """No worker has this name."""


class LastOfItsRole(Exception):
    """No other ready worker can take over this worker's role."""


class CannotChangeRole(Exception):
    """The worker has no role: it has no KV transport."""


class NotBackInTime(Exception):
    """The restarted worker is not ready in time; the router keeps trying to connect."""


class WorkerDrainer:
    """Drains, restarts and reassigns workers. Calls return when done; those for one worker run in order."""

    def __init__(
        self, registry: Registry, able: Able | None = None, evacuate: Evacuate | None = None
    ) -> None:
        """`able(role)`: workers that can compute a role's part of a sequence; None: the workers of the role.

        `evacuate` moves the running answers of a worker; None: none is moved.
        """
        self._registry = registry
        self._evacuate = evacuate or _nothing_moves
        self._able = able or (lambda role: [s for s in registry.sessions() if s.role == role])
        self._locks: dict[str, asyncio.Lock] = {}
        """By worker id: a drain that overlaps a restart would stop the restarted process."""

    async def drain(self, worker_id: str, timeout_s: float, *, force: bool = False) -> int:
        """Drain and stop the worker: it gets no new requests. Its resources stay reserved in Ray.

        Running answers move to other workers with their KV, without an interruption. The other requests have
        `timeout_s` to finish. After that, another worker recomputes the prompt and the answer so far, and
        continues the client's stream. Returns the number of requests that moved in either way. Raises
        NoSuchWorker, and LastOfItsRole unless `force`.
        """
        member = self._member(worker_id)
        async with self._lock(member):
            return await self._drain(member, timeout_s, force=force)

    async def _drain(self, member: Member, timeout_s: float, *, force: bool) -> int:
        worker_id = member.handle.worker_id
        if not force:
            self._require_others(member)
        member.wanted.clear()
        await self._registry.reconsider()
        moved = 0
        if (session := member.session) is not None:
            _log.info(
                "draining %s: %d requests have %g s to finish", worker_id, session.load.requests, timeout_s
            )
            moved = await self._empty(session, timeout_s)
            session.dismiss(f"{worker_id} was drained")
        await member.handle.stop()
        _log.info("drained %s; %d of its requests moved", worker_id, moved)
        return moved

    async def restart(
        self, worker_id: str, timeout_s: float, startup_s: float, *, force: bool = False
    ) -> int:
        """Drain the worker, if it is up, and restart it; returns when it is ready again.

        Returns how many requests moved. Raises what `drain` raises, and NotBackInTime after `startup_s`.
        """
        member = self._member(worker_id)
        async with self._lock(member):
            moved = await self._drain(member, timeout_s, force=force)
            await member.handle.revive()
            began = time.monotonic()
            member.wanted.set()
            if not await self._registry.wait_until(lambda: member.usable, startup_s):
                raise NotBackInTime(f"{worker_id} is not ready after {startup_s:g} s: {member.trouble}")
        _log.info("%s is ready again after %.1f s", worker_id, time.monotonic() - began)
        return moved

    async def _empty(self, session: WorkerSession, timeout_s: float) -> int:
        """Move requests until the worker has none; returns how many moved or will be retried."""
        moved, ends = 0, time.monotonic() + timeout_s
        while True:
            left = ends - time.monotonic()
            moved += await self._evacuate(session.worker_id, max(left, _AGAIN_S))
            left = ends - time.monotonic()
            if await session.idle(min(_AGAIN_S, max(left, 0.0))):
                return moved
            if left <= _AGAIN_S:
                _log.info(
                    "%d requests did not finish in time and are recomputed elsewhere", session.load.requests
                )
                return moved + session.load.requests

    async def assign(self, worker_id: str, role: worker_pb2.Role, *, force: bool = False) -> None:
        """Use the worker for the other role from now on. Running requests are not affected.

        Later incarnations keep the role until another one is assigned. Raises NoSuchWorker, CannotChangeRole
        without a KV transport, and LastOfItsRole unless `force`.
        """
        member = self._member(worker_id)
        if member.session is not None and not member.session.info.transport:
            raise CannotChangeRole(
                f"{worker_id} has no KV transport: with --mode mixed, workers have no roles"
            )
        if role == member.role:
            return
        if not force:
            self._require_others(member)
        member.assigned = role
        if member.session is not None:
            member.session.role = role
        await self._registry.reconsider()
        _log.info(
            "%s is a %s worker now", worker_id, worker_pb2.Role.Name(role).removeprefix("ROLE_").lower()
        )

    def _lock(self, member: Member) -> asyncio.Lock:
        return self._locks.setdefault(member.handle.worker_id, asyncio.Lock())

    def _member(self, worker_id: str) -> Member:
        for member in self._registry.members():
            if member.handle.worker_id == worker_id:
                return member
        names = ", ".join(member.handle.worker_id for member in self._registry.members())
        raise NoSuchWorker(f"there is no worker {worker_id}; there are {names}")

    def _require_others(self, member: Member) -> None:
        able = {session.worker_id for session in self._able(member.role)}
        others = [m for m in self._registry.members() if m is not member and m.handle.worker_id in able]
        if not any(other.usable for other in others):
            raise LastOfItsRole(
                f"no other worker can take over from {member.handle.worker_id}, so requests would fail;"
                " --force overrides this"
            )
