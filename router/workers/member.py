"""One worker of the cluster over all its incarnations, as the router sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from router.workers.circuit_breaker import Health, Trust
from router.workers.session import WorkerSession
from router.workers.silence import Hearing
from rpc.baton.v1 import worker_pb2
from rpc.channel import Endpoint

__all__ = ["Member", "Standing", "WorkerBroken", "WorkerHandle", "WorkerUnavailable"]


class WorkerUnavailable(Exception):
    """The worker cannot be reached now: it is starting, restarting, or its node is gone."""


class WorkerBroken(WorkerUnavailable):
    """The worker runs but cannot start its engine, and most likely never will: a bad model, no memory."""


class WorkerHandle(Protocol):
    """A place where a worker lives, over all of its incarnations."""

    @property
    def worker_id(self) -> str: ...

    @property
    def role(self) -> worker_pb2.Role: ...

    async def endpoint(self) -> Endpoint:
        """Where the current incarnation listens, once it is ready. Raises WorkerUnavailable, WorkerBroken."""
        ...

    async def stop(self) -> None:
        """Ends the worker for good; its place stays reserved."""
        ...

    async def revive(self) -> None:
        """Starts a stopped worker in its place."""
        ...


class Standing(Enum):
    READY = "ready"
    DOUBTED = "doubted"
    """Requests failed on it: avoided while others are ready."""
    LATE = "late"
    """Silent for longer than it should be: keeps its requests, gets new ones only if all are late."""
    BAD = "bad"
    """The canary failed on it: gets no requests until one comes back."""
    AWAY = "away"
    """Starting, restarting, or out of reach."""
    LEAVING = "leaving"
    """Finishes what it has, gets nothing new."""
    STOPPED = "stopped"
    """Left, and stays away until it is started again."""


@dataclass(slots=True, eq=False)
class Member:
    handle: WorkerHandle
    wanted: asyncio.Event
    """Unset from the moment when the worker is to leave: it gets nothing new, and is not sought."""
    health: Health = field(default_factory=Health)
    session: WorkerSession | None = None
    epoch: int | None = None
    trouble: str = "starting"
    broken: WorkerBroken | None = None
    keeper: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def standing(self) -> Standing:
        here = self.session is not None and self.session.alive
        if not self.wanted.is_set():
            return Standing.LEAVING if here else Standing.STOPPED
        if self.session is None or not here:
            return Standing.AWAY
        standing = _BY_TRUST[self.health.trust]
        is_late = self.session.hearing is not Hearing.GOOD and standing is not Standing.BAD
        return Standing.LATE if is_late else standing

    @property
    def usable(self) -> bool:
        return self.standing in (Standing.READY, Standing.DOUBTED, Standing.LATE)


_BY_TRUST: Final = {
    Trust.GOOD: Standing.READY,
    Trust.DOUBTED: Standing.DOUBTED,
    Trust.BAD: Standing.BAD,
}
