"""Fencing: tells every worker which incarnations of other workers are dead.

When a process ends on a live node, the kernel closes its connections. When a node loses power or is cut off,
peers see nothing, and pages reserved for its workers would stay in quarantine. When Ray declares such a node
dead, the router sends a `Fence` command to every other worker.

A silent worker on a live node is never fenced: its process may be stopped and continue later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from rpc.baton.v1 import worker_pb2

__all__ = ["DeadNodes", "Fencing", "Incarnation", "newly_dead"]

_log = logging.getLogger(__name__)

_ASK_S: Final = 2.0
"""Interval of polling Ray for dead nodes while a worker is lost. Ray takes about 15 s to declare one dead."""

DeadNodes: TypeAlias = Callable[[], Awaitable[Collection[str]]]
"""Ids of the nodes that Ray has declared dead. They never come back under the same id."""


class Session(Protocol):
    """The part of `WorkerSession` that is used here."""

    @property
    def info(self) -> worker_pb2.WorkerInfo: ...

    def send(self, command: worker_pb2.Command) -> None: ...


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One process of one worker."""

    worker_id: str
    epoch: int
    node: str
    """Empty: unknown."""

    @classmethod
    def of(cls, info: worker_pb2.WorkerInfo) -> Incarnation:
        return cls(info.worker_id, info.epoch, info.node)


def newly_dead(lost: Collection[Incarnation], dead_nodes: Collection[str]) -> list[Incarnation]:
    """Those of `lost` whose node Ray has declared dead; a silent or unreachable worker may still run."""
    return [incarnation for incarnation in lost if incarnation.node and incarnation.node in dead_nodes]


class Fencing:
    """Sends fences for lost workers on dead nodes. A context manager that runs a task."""

    def __init__(self, dead_nodes: DeadNodes, *, ask_s: float = _ASK_S) -> None:
        self._dead_nodes = dead_nodes
        self._ask_s = ask_s
        self._sessions: dict[int, Session] = {}
        """By epoch."""
        self._newest: dict[str, int] = {}
        """Epoch of each worker's latest session."""
        self._lost: dict[int, Incarnation] = {}
        self._fences: list[worker_pb2.Command] = []
        """All fences so far: a worker that connects later may hold pages for a peer fenced before."""
        self._some_lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Fencing:
        self._task = asyncio.create_task(self._run(), name="fencing")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def begun(self, session: Session) -> None:
        """Register a session and send it all fences. Call before sending any other command over it."""
        self._sessions[session.info.epoch] = session
        self._newest[session.info.worker_id] = session.info.epoch
        self._lost.pop(session.info.epoch, None)  # the same process, which was only unreachable
        for fence in self._fences:
            session.send(fence)

    def ended(self, session: Session) -> None:
        """Register the end of a session, whose process may be dead."""
        self._sessions.pop(session.info.epoch, None)
        if session.info.node:
            self._lost[session.info.epoch] = Incarnation.of(session.info)
            self._some_lost.set()

    async def _run(self) -> None:
        while True:
            await self._some_lost.wait()
            replaced = [i for i in self._lost.values() if self._newest.get(i.worker_id) != i.epoch]
            try:
                dead = await self._dead_nodes()
            except Exception as error:  # Ray's errors share no base class; it is polled again
                _log.warning("cannot get the dead nodes from Ray: %s", error)
            else:
                for incarnation in newly_dead(list(self._lost.values()), dead):
                    self._fence(incarnation)
                self._forget(replaced)
            await asyncio.sleep(self._ask_s)

    def _forget(self, incarnations: Collection[Incarnation]) -> None:
        """Stop polling Ray for these.

        Ray restarts a worker when its process has ended or its node is dead. A worker that had been restarted
        before Ray was asked, and whose node was not dead then, has therefore ended on a living node, whose
        kernel closed its connections, so its peers have detected the end.
        """
        for incarnation in incarnations:
            self._lost.pop(incarnation.epoch, None)
        if not self._lost:
            self._some_lost.clear()

    def _fence(self, incarnation: Incarnation) -> None:
        _log.warning("%s is fenced: its node %s is dead", incarnation.worker_id, incarnation.node)
        self._forget([incarnation])
        fence = worker_pb2.Fence(
            worker_id=incarnation.worker_id,
            epoch=incarnation.epoch,
            reason=f"Ray declared its node {incarnation.node} dead",
        )
        command = worker_pb2.Command(fence=fence)
        self._fences.append(command)
        for session in self._sessions.values():
            session.send(command)
