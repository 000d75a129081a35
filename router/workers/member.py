"""One worker of the cluster over all its incarnations, as the router sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from router.workers.circuit_breaker import CircuitBreaker, CircuitState
from router.workers.heartbeat_monitor import Liveness
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.channel import Endpoint

__all__ = ["Member", "WorkerBroken", "WorkerHandle", "WorkerState", "WorkerUnavailable"]


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


class WorkerState(Enum):
    READY = "ready"
    SUSPECT = "suspect"
    """Requests failed on it: avoided while others are ready."""
    LATE = "late"
    """Silent for longer than it should be: keeps its requests, gets new ones only if all are late."""
    UNHEALTHY = "unhealthy"
    """The probe failed on it: gets no requests until one comes back."""
    UNAVAILABLE = "unavailable"
    """Starting, restarting, or out of reach."""
    DRAINING = "draining"
    """Finishes what it has, gets nothing new."""
    STOPPED = "stopped"
    """Left, and stays away until it is started again."""


@dataclass(slots=True, eq=False)
class Member:
    handle: WorkerHandle
    wanted: asyncio.Event
    """Unset from the moment when the worker is to leave: it gets nothing new, and is not sought."""
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    session: WorkerSession | None = None
    epoch: int | None = None
    trouble: str = "starting"
    broken: WorkerBroken | None = None
    keeper: asyncio.Task[None] | None = field(default=None, repr=False)
    assigned: worker_pb2.Role | None = None
    """By an operator; None: the role that the worker starts with."""

    @property
    def role(self) -> worker_pb2.Role:
        """What the worker is used for."""
        return self.handle.role if self.assigned is None else self.assigned

    @property
    def state(self) -> WorkerState:
        here = self.session is not None and self.session.alive
        if not self.wanted.is_set():
            return WorkerState.DRAINING if here else WorkerState.STOPPED
        if self.session is None or not here:
            return WorkerState.UNAVAILABLE
        state = _BY_CIRCUIT_STATE[self.breaker.state]
        is_late = self.session.liveness is not Liveness.GOOD and state is not WorkerState.UNHEALTHY
        return WorkerState.LATE if is_late else state

    @property
    def usable(self) -> bool:
        return self.state in (WorkerState.READY, WorkerState.SUSPECT, WorkerState.LATE)


_BY_CIRCUIT_STATE: Final = {
    CircuitState.CLOSED: WorkerState.READY,
    CircuitState.SUSPECT: WorkerState.SUSPECT,
    CircuitState.OPEN: WorkerState.UNHEALTHY,
}
