"""The workers of the cluster, their sessions and their states.

Each worker has a task, its keeper, which resolves the worker's current address, opens a session, waits until
it is lost, and starts over. In this way a worker that Ray restarted rejoins, as a new peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias

from common.background import cancelled, supervised
from common.version import build
from router.dispatch.workers.fencing import Fencing
from router.dispatch.workers.liveness import HeartbeatMonitor
from router.dispatch.workers.member import (
    Member,
    WorkerBroken,
    WorkerHandle,
    WorkerState,
    WorkerStopped,
    WorkerUnavailable,
)
from router.dispatch.workers.session import WorkerSession
from router.dispatch.workers.worker_adapters import WorkerAdapters
from rpc.baton.v1 import worker_pb2
from rpc.status import RpcError

_log = logging.getLogger(__name__)

_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 5.0
_CLOSE_S: Final = 10.0
"""For a dismissed session to end."""


OnChange: TypeAlias = Callable[[Member, bool], None]


async def _as_it_is(session: WorkerSession) -> None:
    pass


class Registry:
    """Keeps a session with every worker. A context manager that runs the keepers."""

    def __init__(
        self,
        handles: Sequence[WorkerHandle],
        on_change: OnChange = lambda _member, _up: None,
        *,
        silence_s: float = 1.0,
        grace_s: float = 3.0,
        fencing: Fencing | None = None,
        digests: Mapping[str, str] = MappingProxyType({}),
        name: str = "",
        has_ray: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_change(member, up)` is called whenever a worker connects, is lost, or gets another role.

        A worker is late after `silence_s` without a message or heartbeat, and lost after `grace_s` more.
        `fencing` is notified of all sessions; None if all workers run on one node. `digests`: by worker id,
        of the settings that this router would start it with. `name`: of this router, unique among those of
        the workers; later ones sort after earlier ones. `has_ray`: whether Ray answers this router.
        """
        self._members = [Member(handle, asyncio.Event()) for handle in handles]
        for member in self._members:
            member.wanted.set()
        self._on_change = on_change
        self._silence_s = silence_s
        self._grace_s = grace_s
        self.prepare: Callable[[WorkerSession], Awaitable[None]] = _as_it_is
        """Called with a worker that connects, before it gets requests. Raises RpcError, WorkerUnavailable."""
        self._on_news: Callable[[], None] = lambda: None
        self._fencing = fencing
        self._digests = dict(digests)
        self.name: Final = name
        self._has_ray = has_ray
        self._changed = asyncio.Condition()
        self._draining: set[str] = set()
        """Workers that report a drain."""

    async def __aenter__(self) -> Registry:
        for member in self._members:
            self._begin(member)
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancelled(*(member.keeper for member in self._members if member.keeper is not None))

    def _begin(self, member: Member) -> None:
        member.keeper = supervised(self._keep(member), f"keeper {member.handle.worker_id}")

    async def add(self, handle: WorkerHandle, digest: str) -> None:
        """Keep a session with one more worker; `digest`: see `digests`."""
        member = Member(handle, asyncio.Event())
        member.wanted.set()
        self._digests[handle.worker_id] = digest
        self._members.append(member)
        self._begin(member)
        await self.reconsider()

    async def remove(self, member: Member) -> None:
        """End the session with a worker that has left, and forget it."""
        self._members.remove(member)
        self._digests.pop(member.handle.worker_id, None)
        if member.keeper is not None:
            await cancelled(member.keeper)
        if self._fencing is not None:
            self._fencing.left(member.handle.worker_id)
        await self._announce(member, up=False)

    def ready(self, role: worker_pb2.Role) -> list[WorkerSession]:
        """Sessions to the workers of a role that can be used now."""
        return [m.session for m in self._members if m.role == role and m.session and m.usable]

    def members(self) -> Sequence[Member]:
        """All workers: those that were given first in the order of their handles, then added ones."""
        return tuple(self._members)

    def sessions(self) -> list[WorkerSession]:
        return [member.session for member in self._members if member.session is not None]

    def computing(self) -> list[WorkerSession]:
        """Sessions to the workers that compute tokens: to all but encode workers."""
        return [session for session in self.sessions() if session.role != worker_pb2.ROLE_ENCODE]

    def computing_members(self) -> Sequence[Member]:
        """All workers but encode workers."""
        return [member for member in self._members if member.role != worker_pb2.ROLE_ENCODE]

    def all_ready(self) -> bool:
        """Whether all are that were not drained."""
        return all(member.usable or member.is_stopped for member in self._members)

    def any_ready(self) -> bool:
        return any(member.usable for member in self._members)

    @property
    def leads(self) -> bool:
        """Whether this router is the latest of those that the workers report, and that Ray answers.

        Routers may disagree about that for a moment, so whatever the leader does must be safe to do twice.
        """
        others = (name for session in self.sessions() for name in session.load.routers_with_ray)
        return self._has_ray() and all(self.name >= other for other in others)

    def other_routers(self) -> list[str]:
        """The other routers that the workers report."""
        names = {name for session in self.sessions() for name in session.load.routers}
        return sorted(names - {self.name})

    def complaints(self) -> list[str]:
        """For each worker that is not ready, its last error."""
        return [
            f"{m.handle.worker_id}: {m.trouble if m.state is WorkerState.UNAVAILABLE else m.state.value}"
            for m in self._members
            if not m.usable
        ]

    async def wait_for(self, role: worker_pb2.Role, timeout_s: float) -> bool:
        """Wait until a worker of the role is ready; False after `timeout_s`."""
        return await self.wait_until(lambda: bool(self.ready(role)), timeout_s)

    async def wait_for_all(self, timeout_s: float) -> bool:
        """Wait until all are ready; False after `timeout_s`. Raises WorkerBroken if one cannot start."""
        await self.wait_until(lambda: self.all_ready() or self._first_broken() is not None, timeout_s)
        broken = self._first_broken()
        if broken is not None:
            raise broken
        return self.all_ready()

    async def wait_for_any(self, timeout_s: float) -> bool:
        """Wait until one is ready; False after `timeout_s`. Raises WorkerBroken if none can start."""

        def is_decided() -> bool:
            return self.any_ready() or all(m.broken or m.is_stopped for m in self._members)

        await self.wait_until(is_decided, timeout_s)
        broken = self._first_broken()
        if broken is not None and not self.any_ready():
            raise broken
        return self.any_ready()

    def _first_broken(self) -> WorkerBroken | None:
        return next((member.broken for member in self._members if member.broken is not None), None)

    def metrics_targets(self) -> list[str]:
        """host:port of the metrics endpoint of every connected worker."""
        return [s.info.metrics_address for s in self.sessions() if s.info.metrics_address]

    def watch(self, on_news: Callable[[], None]) -> None:
        """Call `on_news` whenever the load or state of a worker has changed. It must not block."""
        self._on_news = on_news

    async def reconsider(self) -> None:
        """Wake everything that waits for a state. Call when the state of a worker has changed."""
        self._on_news()
        async with self._changed:
            self._changed.notify_all()

    async def assign(self, member: Member, role: worker_pb2.Role) -> None:
        """Use the worker, and its later incarnations, for `role` from now on."""
        member.assigned = role
        if member.session is not None:
            member.session.role = role
        await self._announce(member, up=member.session is not None)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition`, a function of the workers' states, is true; False after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(condition)
        return condition()

    async def stop(self, member: Member) -> None:
        """Stop a worker's process. Call after its session was dismissed; it must not be `wanted`."""
        await member.handle.stop()
        await self.wait_until(lambda: member.session is None, _CLOSE_S)
        member.epoch = None  # another process is no surprise
        if self._fencing is not None:
            self._fencing.stopped(member.handle.worker_id)

    async def _keep(self, member: Member) -> None:
        delay = _FIRST_RETRY_S
        while True:
            await member.wanted.wait()
            try:
                session = await self._open(member)
            except Exception as error:  # no error may remove a worker permanently
                await self._note_trouble(member, error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, _LONGEST_RETRY_S)
                continue
            delay = _FIRST_RETRY_S
            try:
                if not member.wanted.is_set():
                    continue  # it was drained while it connected
                await self._admit(member, session)
                reason = await session.lost()
            finally:
                member.session = None
                self._draining.discard(member.handle.worker_id)
                if self._fencing is not None:
                    self._fencing.ended(session)
                await session.close()
            if member.wanted.is_set():
                _log.warning("lost %s: %s", _described(session), reason)
            member.trouble = reason
            await self._announce(member, up=False)

    async def _note_trouble(self, member: Member, error: Exception) -> None:
        expected = isinstance(error, WorkerUnavailable | RpcError)
        member.is_stopped = isinstance(error, WorkerStopped)
        is_news = isinstance(error, WorkerBroken) and str(error) != member.trouble
        level = logging.WARNING if is_news else logging.DEBUG if expected else logging.ERROR
        _log.log(level, "%s is not ready: %s", member.handle.worker_id, error, exc_info=not expected)
        member.trouble = str(error)
        if member.is_stopped:
            await self.reconsider()
        if isinstance(error, WorkerBroken):
            member.broken = WorkerBroken(f"{member.handle.worker_id} could not start: {error}")
            await self.reconsider()

    async def _open(self, member: Member) -> WorkerSession:
        worker_id = member.handle.worker_id
        session = await WorkerSession.open(
            worker_id,
            await member.handle.endpoint(),
            member.breaker,
            monitor=HeartbeatMonitor(self._silence_s, self._grace_s),
            on_news=lambda: self._on_report(member),
            router=self.name,
            has_ray=self._has_ray,
        )
        session.adapters.peers = partial(self._adapters_beside, session)
        found = session.info.settings_digest
        wanted = self._digests.get(worker_id, found)
        member.is_outdated = found != wanted
        if computes(found) != computes(wanted):
            await session.close()
            await self.reconsider()
            raise WorkerUnavailable("it has another model, KV layout or version of Baton than this router")
        try:
            await self.prepare(session)
        except BaseException:
            await session.close()
            raise
        odd = self._incompatible(session)
        if odd:
            await session.close()
            raise WorkerBroken(odd)
        return session

    def _on_report(self, member: Member) -> None:
        worker_id, session = member.handle.worker_id, member.session
        if session is not None and session.load.draining != (worker_id in self._draining):
            self._draining ^= {worker_id}
            supervised(self.reconsider(), "drains")
        self._on_news()

    def _adapters_beside(self, session: WorkerSession) -> list[WorkerAdapters]:
        return [other.adapters for other in self.sessions() if other is not session]

    def _incompatible(self, session: WorkerSession) -> str | None:
        """The reason to refuse a worker, or None.

        Router and workers must run the same code, since neither the protocol nor the rules for KV have
        versions of their own; KV is transferred only between pools of one layout.
        """
        if session.info.build != build():
            return (
                f"it runs Baton {session.info.build or 'of another version'} and this router {build()};"
                " install the same wheel on every machine, and restart Ray and the router"
            )
        for other in self.sessions():
            mine, theirs = _weights(session.info), _weights(other.info)
            if mine != theirs and session.info.served.tag == other.info.served.tag:
                return (
                    f"its weights {mine} differ from those of {other.worker_id}, {theirs};"
                    " all workers must run one revision of the checkpoint"
                )
            both_compute = worker_pb2.ROLE_ENCODE not in (session.info.role, other.info.role)
            if both_compute and other.info.layout_hash != session.info.layout_hash:
                return (
                    f"its KV layout {session.info.layout_hash} differs from that of {other.worker_id},"
                    f" {other.info.layout_hash}; all workers must run the same model,"
                    " --dtype, --quantization and --page-size"
                )
        return None

    async def _admit(self, member: Member, session: WorkerSession) -> None:
        if member.epoch is not None and member.epoch != session.info.epoch:
            end = session.info.predecessor or "how its previous process ended is not known on this node"
            _log.warning(
                "%s was restarted and is back (pid %d): %s", session.worker_id, session.info.pid, end
            )
        if self._fencing is not None:
            self._fencing.begun(session)
        session.role = member.role
        member.session, member.epoch = session, session.info.epoch
        member.trouble, member.broken, member.is_stopped = "", None, False
        await self._announce(member, up=True)

    async def _announce(self, member: Member, *, up: bool) -> None:
        self._on_change(member, up)
        await self.reconsider()


def computes(settings_digest: str) -> str:
    """The part of a digest by which workers compute the same tokens, exchange KV and speak one protocol.

    They differ otherwise in settings such as limits and chunk sizes, which a session states.
    """
    return settings_digest.partition("-")[0]


def _weights(info: worker_pb2.WorkerInfo) -> str:
    """What a worker computes with, to compare with workers of the same update, or of none."""
    return str(info.served.digest or info.weights)


def _described(session: WorkerSession) -> str:
    """A lost worker, where its process is or was, and how many requests it computed."""
    info = session.info
    host = info.metrics_address.rpartition(":")[0]
    return f"{session.worker_id} (pid {info.pid} on {host}, {session.num_cut} requests continue elsewhere)"


def place_among(registries: Iterable[Registry]) -> tuple[int, int]:
    """The index of this router among all that are connected to the workers of any of its models, and their
    number.
    """
    known = list(registries)
    others = {other for registry in known for other in registry.other_routers()}
    return sum(other < known[0].name for other in others), len(others) + 1
