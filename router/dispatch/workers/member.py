"""A worker of the cluster, over all its incarnations."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from router.dispatch.workers.liveness import CircuitBreaker, CircuitState, Liveness
from router.dispatch.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.channel import Endpoint


class WorkerUnavailable(Exception):
    """The worker cannot be reached: it is starting or restarting, or its node is down."""


class WorkerBroken(WorkerUnavailable):
    """The worker runs but cannot start its engine, for a reason that a restart does not fix."""


class WorkerStopped(WorkerUnavailable):
    """The worker was drained, and no router starts it before `revive`."""


class WorkerHandle(Protocol):
    """Handle of a worker, valid over all its incarnations."""

    @property
    def worker_id(self) -> str: ...

    @property
    def role(self) -> worker_pb2.Role: ...

    async def endpoint(self) -> Endpoint:
        """Address of the current incarnation, once ready. Raises WorkerUnavailable, WorkerBroken."""
        ...

    async def drain(self, seconds: float) -> None:
        """Have the routers that are connected to the worker move its requests, for at most `seconds`."""
        ...

    async def stop(self) -> None:
        """Stop the worker; its resources stay reserved."""
        ...

    async def revive(self) -> None:
        """Start a stopped worker again with the reserved resources."""
        ...


class WorkerState(Enum):
    READY = "ready"
    SUSPECT = "suspect"
    """Requests failed: avoided while others are ready."""
    LATE = "late"
    """Its heartbeats are late: keeps its requests, gets new ones only if all workers are late."""
    UNHEALTHY = "unhealthy"
    """Its probe failed: gets no requests until one succeeds."""
    UNAVAILABLE = "unavailable"
    """Starting, restarting or unreachable."""
    DRAINING = "draining"
    """Finishes its requests and gets no new ones: it is drained, through this router or another one."""
    STOPPED = "stopped"
    """Drained; not started again until `router restart`."""


@dataclass(slots=True, eq=False)
class Member:
    handle: WorkerHandle
    wanted: asyncio.Event
    """Cleared when the worker is drained: it gets no new requests and is not reconnected."""
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    session: WorkerSession | None = None
    epoch: int | None = None
    trouble: str = "starting"
    broken: WorkerBroken | None = None
    keeper: asyncio.Task[None] | None = field(default=None, repr=False)
    is_stopped: bool = False
    """It was drained, through this router or another one."""
    is_outdated: bool = False
    """It was started with other settings than this router's: it is restarted when others can take over."""
    assigned: worker_pb2.Role | None = None
    """Role assigned by an operator; None: the role that the worker was started with."""

    @property
    def role(self) -> worker_pb2.Role:
        """The role that the router uses the worker for."""
        return self.handle.role if self.assigned is None else self.assigned

    @property
    def role_name(self) -> str:
        return worker_pb2.Role.Name(self.role).removeprefix("ROLE_").lower()

    @property
    def state(self) -> WorkerState:
        here = self.session is not None and self.session.alive
        if not self.wanted.is_set():
            return WorkerState.DRAINING if here else WorkerState.STOPPED
        if self.session is None or not here:
            return WorkerState.STOPPED if self.is_stopped else WorkerState.UNAVAILABLE
        if self.session.load.draining:
            return WorkerState.DRAINING
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
