"""Selects workers: applies the pure functions of router/placement/by_load.py to the sessions."""

from __future__ import annotations

import itertools
from collections.abc import Set
from typing import Final

from router.config.settings import Routing
from router.dispatch.failures import pages_quarantined
from router.dispatch.sequence import Sequence
from router.placement.by_load import POLICIES, Health, LoadView, any_has_room, place, preferred
from router.workers.circuit_breaker import CircuitState
from router.workers.heartbeat_monitor import Liveness
from router.workers.load import Task
from router.workers.registry import Registry
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL

__all__ = ["GROWTH_TOKENS", "WorkerChoice", "cached_tokens"]

GROWTH_TOKENS: Final = 256
"""Tokens that may be decoded during a move. An answer that grows by more stays at its source."""

_NO_WORKERS: frozenset[str] = frozenset()


class WorkerChoice:
    """Selects workers by role and by the policy of `--routing`."""

    def __init__(self, registry: Registry, routing: Routing) -> None:
        self._registry = registry
        self._choose = POLICIES[routing]
        self._turns = {role: itertools.count() for role in worker_pb2.Role.values()}
        """Round-robin position of each role. With a shared one, two prefill and two decode workers would
        always form the same pairs."""

    def pick(
        self, role: worker_pb2.Role, sequence: Sequence, avoid: Set[str] = _NO_WORKERS
    ) -> WorkerSession | None:
        """The worker for a sequence; None if none is ready. O(workers), and O(tokens) at the first call."""
        ready = self._registry.ready(role)
        if not ready:
            return None
        views = [_view(session, avoid, cached_tokens(session, sequence)) for session in ready]
        return ready[place(views, sequence.num_tokens, self._choose, next(self._turns[role]))]

    def ready_workers(self) -> list[WorkerSession]:
        """All ready workers, of both roles."""
        return [*self._registry.ready(ROLE_PREFILL), *self._registry.ready(ROLE_DECODE)]

    def preferred(self, tokens: int = 0, avoid: Set[str] = _NO_WORKERS) -> list[WorkerSession]:
        """The ready workers of the best health that a request of this size fits.

        Raises Unavailable if it fits none of the ready workers.
        """
        ready = self.ready_workers()
        found = [ready[i] for i in preferred(_views(ready, avoid), tokens)]
        if ready and not found:
            raise pages_quarantined(tokens)
        return found

    def has_room(self, session: WorkerSession, tokens: int) -> bool:
        """Whether this worker has pages and a slot for a request of `tokens` tokens."""
        return session.load.room().has_room(tokens)

    def move_target(self, sessions: list[WorkerSession], tokens: int, leaving: str) -> WorkerSession | None:
        """The least loaded of `sessions` with room, except `leaving`; None if there is none. O(workers)."""
        others = [s for s in sessions if s.worker_id != leaving and self.has_room(s, tokens)]
        if not others:
            return None
        return others[place(_views(others, _NO_WORKERS), tokens, POLICIES[Routing.LEAST_LOADED], 0)]

    def can_decode(self, tokens: int, avoid: Set[str] = _NO_WORKERS) -> bool:
        """Whether a decode worker has room. True if none is ready, so that the attempt fails at once.

        Raises Unavailable if the request fits none of the ready workers.
        """
        views = _views(self._registry.ready(ROLE_DECODE), avoid)
        if views and not any(view.room.fits(tokens) for view in views):
            raise pages_quarantined(tokens)
        return any_has_room(views, tokens)

    def promise(self, tokens: int, avoid: Set[str] = _NO_WORKERS) -> Task | None:
        """Reserve room on a decode worker; None if there is none."""
        ready = self._registry.ready(ROLE_DECODE)
        if not ready:
            return None
        # Always by load: a promise must not advance the round-robin position.
        views = _views(ready, avoid)
        session = ready[place(views, tokens, POLICIES[Routing.LEAST_LOADED], 0)]
        return session.load.promise(tokens)


def cached_tokens(session: WorkerSession, sequence: Sequence) -> int:
    """Prompt tokens of the sequence that the worker has cached or is expected to have. O(log tokens)."""
    return session.load.cached.matching_tokens(sequence.blocks(session.load.page_size))


def _views(sessions: list[WorkerSession], avoid: Set[str]) -> list[LoadView]:
    return [_view(session, avoid) for session in sessions]


def _view(session: WorkerSession, avoid: Set[str], cached_tokens: int = 0) -> LoadView:
    load = session.load
    return LoadView(load.requests, load.tokens, cached_tokens, _health(session, avoid), load.room())


def _health(session: WorkerSession, avoid: Set[str]) -> Health:
    if session.liveness is not Liveness.GOOD:
        return Health.LATE
    if session.worker_id in avoid:
        return Health.AVOIDED
    return Health.GOOD if session.breaker.state is CircuitState.CLOSED else Health.SUSPECT
