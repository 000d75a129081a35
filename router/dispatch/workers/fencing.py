"""Fencing: tells every worker which incarnations of other workers are dead.

When a process ends on a node that its peers reach, the kernel closes its connections. When its node loses
power or is cut off, peers see nothing, and pages reserved for it would stay in quarantine. So an incarnation
whose session has ended is fenced, with a `Fence` command to every other worker, when Ray knows its end:

| Ray | why |
| --- | --- |
| declared its node dead | the process has ended, or is cut off |
| started another process of the same worker | it does so only after the end of the first, or of its node |
| ended the process for a drain | |

The last known incarnation of each worker is kept where the next router finds it: a node may be lost, or a
worker replaced, while there is none.

A silent worker on a live node is never fenced: its process may be stopped and continue later. Fencing a
process that still runs would be safe: a peer takes pages back only after it has closed every path to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from common.background import cancelled, repeat, supervised
from rpc.baton.v1 import worker_pb2

_log = logging.getLogger(__name__)

_ASK_S: Final = 2.0
"""Interval of polling Ray for dead nodes while a worker is lost. Ray takes about 15 s to declare one dead.

Also the time for peers to detect the end of a replaced process by its connections, before it is fenced."""

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


class Memory(Protocol):
    """Keeps the last incarnation of each worker, for the next router. Raises what Ray raises."""

    async def incarnations(self) -> list[Incarnation]: ...

    async def keep_incarnation(self, incarnation: Incarnation) -> None: ...


def newly_dead(lost: Collection[Incarnation], dead_nodes: Collection[str]) -> list[Incarnation]:
    """Lost workers whose node Ray has declared dead; a silent or unreachable worker may still run."""
    return [incarnation for incarnation in lost if incarnation.node and incarnation.node in dead_nodes]


class Fencing:
    """Sends fences for lost workers. A context manager that runs a task."""

    def __init__(self, dead_nodes: DeadNodes, memory: Memory, *, ask_s: float = _ASK_S) -> None:
        self._dead_nodes = dead_nodes
        self._memory = memory
        self._keeping: set[asyncio.Task[None]] = set()
        self._ask_s = ask_s
        self._sessions: dict[int, Session] = {}
        """Sessions by epoch."""
        self._lost: dict[int, Incarnation] = {}
        """Processes that may have ended, or may come back."""
        self._ended: dict[int, Incarnation] = {}
        """Processes that have ended, and are fenced soon."""
        self._fences: list[worker_pb2.Command] = []
        """Since the oldest loss in `_lost`: a process that comes back may hold pages for a fenced peer."""
        self._news = asyncio.Event()
        """Set while there are lost or ended incarnations."""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Fencing:
        """Enter before any session begins. Raises what Ray raises."""
        for incarnation in await self._memory.incarnations():
            self._lost[incarnation.epoch] = incarnation
            self._news.set()
        self._task = supervised(repeat(self._look, 0.0, _log, "workers are not fenced"), "fencing")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            await cancelled(self._task)

    def begun(self, session: Session) -> None:
        """Register a session and send it all fences. Call before sending any other command over it."""
        epoch, worker_id = session.info.epoch, session.info.worker_id
        self._sessions[epoch] = session
        self._lost.pop(epoch, None)  # the same process, which was only unreachable
        self._ended.pop(epoch, None)
        for fence in self._fences:
            session.send(fence)
        self.stopped(worker_id)
        keeping = supervised(self._keep(Incarnation.of(session.info)), "incarnations")
        self._keeping.add(keeping)
        keeping.add_done_callback(self._keeping.discard)

    def ended(self, session: Session) -> None:
        """Register the end of a session, whose process may be dead."""
        self._sessions.pop(session.info.epoch, None)
        if session.info.node:
            self._lost[session.info.epoch] = Incarnation.of(session.info)
            self._news.set()

    def stopped(self, worker_id: str) -> None:
        """Register that all processes of the worker without a session have ended."""
        for incarnation in [lost for lost in self._lost.values() if lost.worker_id == worker_id]:
            self._ended[incarnation.epoch] = self._lost.pop(incarnation.epoch)

    def left(self, worker_id: str) -> None:
        """Register that the cluster is not to have the worker any more. The router that ends its process
        fences it."""
        for incarnation in [lost for lost in self._lost.values() if lost.worker_id == worker_id]:
            del self._lost[incarnation.epoch]

    async def _keep(self, incarnation: Incarnation) -> None:
        try:
            await self._memory.keep_incarnation(incarnation)
        except Exception as error:  # Ray's errors share no base class
            _log.warning("Ray does not keep the incarnation of %s: %s", incarnation.worker_id, error)

    async def _look(self) -> None:
        await self._news.wait()
        replaced = list(self._ended.values())
        if self._lost:
            await self._fence_dead_nodes()
        await asyncio.sleep(self._ask_s)
        for incarnation in replaced:
            if self._ended.pop(incarnation.epoch, None) is not None:
                _log.debug("%s: its process before the current one is fenced", incarnation.worker_id)
                self._fence(incarnation, "Ray has ended its process")
        if not self._lost:
            self._fences.clear()
            if not self._ended:
                self._news.clear()

    async def _fence_dead_nodes(self) -> None:
        try:
            dead = await self._dead_nodes()
        except Exception as error:  # Ray's errors share no base class; it is polled again
            _log.warning("cannot get the dead nodes from Ray: %s", error)
            return
        for incarnation in newly_dead([*self._lost.values(), *self._ended.values()], dead):
            _log.warning("%s is fenced: its node %s is dead", incarnation.worker_id, incarnation.node)
            self._lost.pop(incarnation.epoch, None)
            self._ended.pop(incarnation.epoch, None)
            self._fence(incarnation, f"Ray declared its node {incarnation.node} dead")

    def _fence(self, incarnation: Incarnation, reason: str) -> None:
        fence = worker_pb2.Fence(worker_id=incarnation.worker_id, epoch=incarnation.epoch, reason=reason)
        command = worker_pb2.Command(fence=fence)
        self._fences.append(command)
        for session in self._sessions.values():
            session.send(command)
