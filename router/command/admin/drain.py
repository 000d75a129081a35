"""Drain or restart a worker without failing requests."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

from common.background import repeat, supervised
from common.error_text import first_line
from router.dispatch.workers.member import Member
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2

MigrateFrom: TypeAlias = Callable[[str, float], Awaitable[int]]
"""(worker, time limit in seconds) -> number of running answers that moved to other workers with their KV."""

_ENDS_S: Final = 30.0
"""For the process of a drained worker to end; if it runs on, it is in service again for other routers."""
_REPORTS_S: Final = 2.0
_AGAIN_S: Final = 0.2
"""Interval of further attempts: for requests whose prefill has ended since, or that found no room before."""


async def _nothing_moves(worker_id: str, timeout_s: float) -> int:
    return 0


_log = logging.getLogger(__name__)


class NoSuchWorker(Exception):
    """No worker has this name."""


class LastWorker(Exception):
    """No other worker is ready, or none of the role that this one is to give up."""


class CannotChangeRole(Exception):
    """The worker has no role: it has no KV transport."""


class OperationFailed(Exception):
    """Ray did not do what was asked; the message says in which state the worker is."""


class NotBackInTime(Exception):
    """The restarted worker is not ready in time; the router keeps trying to connect."""


class WorkerDrainer:
    """Drains, restarts and reassigns workers. Calls return when done; those for one worker run in order."""

    def __init__(
        self, registry: Registry, migrate_from: MigrateFrom | None = None, *, needs_roles: bool = True
    ) -> None:
        """`migrate_from` moves the running answers of a worker; None: none is moved.

        `needs_roles`: the mode needs workers of both roles; in adaptive mode a role is a preference.
        """
        self._registry = registry
        self._needs_roles = needs_roles
        self._migrate_from = migrate_from or _nothing_moves
        self._followed: dict[WorkerSession, asyncio.Task[None]] = {}
        """Sessions of workers that another router drains."""
        self._locks: dict[str, asyncio.Lock] = {}
        """Locks by worker id: a drain that overlaps a restart would stop the restarted process."""

    async def drain(self, worker_id: str, timeout_s: float, *, force: bool = False) -> int:
        """Drain and stop the worker: it gets no new requests. Its resources stay reserved in Ray.

        Running answers move to other workers with their KV, without an interruption. The other requests have
        `timeout_s` to finish. After that, another worker recomputes the prompt and the answer so far, and
        continues the client's stream. Returns the number of requests that moved in either way. Raises
        NoSuchWorker, OperationFailed, and LastWorker unless `force`.
        """
        member = self._member(worker_id)
        async with self._lock(member):
            self._require_others(member, force)
            moved = await self._empty(member, timeout_s)
            try:
                await self._registry.stop(member)
            except Exception as error:  # Ray's errors share no base class
                raise OperationFailed(
                    f"{worker_id} gets no requests, but its process may still run: {first_line(error)};"
                    " drain it again"
                ) from error
        _log.info("drained %s; %d of its requests moved", worker_id, moved)
        return moved

    async def follow(self) -> None:
        """Move this router's answers off workers that other routers drain, for ever."""
        try:
            await repeat(self._follow_next, 0.0, _log, "drains of other routers are not followed")
        finally:
            for task in self._followed.values():
                task.cancel()

    async def _follow_next(self) -> None:
        await self._registry.wait_until(lambda: bool(self._drained_by_others()), math.inf)
        for session in self._drained_by_others():
            self._followed[session] = supervised(self._leave(session), f"leave {session.worker_id}")

    def _drained_by_others(self) -> list[WorkerSession]:
        """Sessions that are not followed yet."""
        return [
            member.session
            for member in self._registry.members()
            if member.session is not None
            and member.session.load.draining
            and not member.session.load.updating  # see HandOver
            and member.wanted.is_set()
            and member.session not in self._followed
        ]

    async def _leave(self, session: WorkerSession) -> None:
        _log.info("%s is drained by another router", session.worker_id)
        try:
            await repeat(
                partial(self._move_from, session),
                _AGAIN_S,
                _log,
                f"answers do not move from {session.worker_id}",
                until=lambda: not (session.alive and session.load.draining),
            )
        finally:
            del self._followed[session]

    async def _move_from(self, session: WorkerSession) -> None:
        if session.load.requests:
            await self._migrate_from(session.worker_id, _AGAIN_S)

    async def restart(
        self, worker_id: str, timeout_s: float, startup_s: float, *, force: bool = False
    ) -> int:
        """Drain the worker, if it is up, and restart it; returns when it is ready again.

        Returns how many requests moved. Raises what `drain` raises, and NotBackInTime after `startup_s`. If
        it fails half-way, the worker stays wanted: the router goes on trying to connect to it.
        """
        member = self._member(worker_id)
        async with self._lock(member):
            self._require_others(member, force)
            began = time.monotonic()
            try:
                moved = await self._empty(member, timeout_s)
                await self._registry.stop(member)
                await member.handle.revive()
            except Exception as error:
                raise OperationFailed(
                    f"{worker_id} was not restarted: {first_line(error)}; the router reconnects to it if it"
                    " runs; see `router workers`"
                ) from error
            finally:
                member.wanted.set()
            if not await self._registry.wait_until(lambda: member.usable, startup_s):
                raise NotBackInTime(f"{worker_id} is not ready after {startup_s:g} s: {member.trouble}")
        _log.info("%s is ready again after %.1f s", worker_id, time.monotonic() - began)
        return moved

    async def _empty(self, member: Member, timeout_s: float) -> int:
        """Take the worker out of service and end its session; returns how many requests moved."""
        member.wanted.clear()
        await self._registry.reconsider()
        if (session := member.session) is None:
            if member.is_outdated:  # it may serve routers of its kind
                await member.handle.drain(timeout_s)
            return 0
        worker_id = member.handle.worker_id
        _log.info("draining %s: %d requests have %g s to finish", worker_id, session.load.requests, timeout_s)
        session.send(worker_pb2.Command(drain=worker_pb2.Drain(seconds=timeout_s + _ENDS_S)))
        # Its report of the drain is the first that surely covers what other routers have sent.
        await self._registry.wait_until(lambda: session.load.draining or not session.alive, _REPORTS_S)
        try:
            return await self._move_requests(session, timeout_s)
        finally:
            session.dismiss("drained")

    async def _move_requests(self, session: WorkerSession, timeout_s: float) -> int:
        """Move requests until the worker has none; returns how many moved or will be retried."""
        moved, ends = 0, time.monotonic() + timeout_s
        while True:
            left = ends - time.monotonic()
            moved += await self._migrate_from(session.worker_id, max(left, _AGAIN_S))
            left = ends - time.monotonic()
            if await session.idle(min(_AGAIN_S, max(left, 0.0))):
                if not session.load.others.requests or left <= _AGAIN_S:
                    return moved
                await asyncio.sleep(_AGAIN_S)
                continue
            if left <= _AGAIN_S:
                _log.info(
                    "%d requests did not finish in time and are recomputed elsewhere", session.load.requests
                )
                return moved + session.load.requests

    async def assign(self, worker_id: str, role: worker_pb2.Role, *, force: bool = False) -> None:
        """Use the worker for the other role from now on. Running requests are not affected.

        Later incarnations keep the role until another one is assigned. Raises NoSuchWorker, CannotChangeRole
        without a KV transport, and LastWorker unless `force`.
        """
        member = self._member(worker_id)
        if member.session is not None and not member.session.info.transport:
            raise CannotChangeRole(
                f"{worker_id} has no KV transport: with --mode mixed, workers have no roles"
            )
        if role == member.role:
            return
        needs_another = self._needs_roles and not force
        if needs_another and not any(other.role == member.role for other in self._others(member)):
            raise LastWorker(
                f"{worker_id} is the last worker of its role that is ready; --force overrides this"
            )
        await self._registry.assign(member, role)
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

    def _require_others(self, member: Member, force: bool) -> None:
        """Raises LastWorker if the requests of a worker in service would have no other one of any role."""
        needs_another = member.usable and member.role != worker_pb2.ROLE_ENCODE
        if needs_another and not (force or self._others(member)):
            raise LastWorker(
                f"no other worker can take over from {member.handle.worker_id}, so requests would wait or"
                " fail; --force overrides this"
            )

    def _others(self, member: Member) -> list[Member]:
        """The ready workers that can take over from this one: those of any role that computes tokens."""
        return [
            other
            for other in self._registry.members()
            if other is not member and other.usable and other.role != worker_pb2.ROLE_ENCODE
        ]
