"""What a router adds to a placement policy: it sends requests to workers that have room for them.

In fixed modes the policy chooses among the workers with room. A disaggregated request without a decode worker
with room is held back. In adaptive mode it then queues, with its prompt, where its answer will be decoded.
Either way a request waits before its prompt is computed, and holds no KV meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from router.placement import (
    AdaptivePlacement,
    ClusterModel,
    DisaggPlacement,
    Placement,
    PlacementPolicy,
    Preference,
    RequestView,
)
from router.placement.view import WorkerId
from router.simulator.worker import SimWorker

__all__ = ["Routing"]


class Routing:
    """The rules of `router.dispatch.routing`, with `Room.has_room` of the router."""

    def __init__(
        self,
        policy: PlacementPolicy,
        cluster: ClusterModel,
        workers: Sequence[SimWorker],
        preferences: Sequence[Preference],
    ) -> None:
        self._policy = policy
        self._cluster = cluster
        self._workers = {str(worker.number): worker for worker in workers}
        roles = dict(zip(self._workers, preferences, strict=True))
        is_disagg = isinstance(policy, DisaggPlacement)
        self._groups = [frozenset(self._workers)]
        """Workers that do the same, those that decode first."""
        if is_disagg:
            decode = frozenset(name for name, role in roles.items() if role is not Preference.PREFILL)
            self._groups = [decode, frozenset(self._workers) - decode]
        self._holds_back = is_disagg

    def place(self, request: RequestView, now: float) -> Placement | None:
        """None: the request is held back. O(1) beside the policy, O(workers) if a chosen one has no room."""
        tokens, policy = request.prompt_tokens, self._policy
        placement = policy.place(request, self._cluster.view(now))
        prefill_worker, decode_worker = placement.prefill_worker, placement.decode_worker
        if isinstance(policy, AdaptivePlacement):
            if placement.is_local or self._has_room(decode_worker, tokens):
                return placement
            return Placement(decode_worker, decode_worker, placement.why)
        if self._has_room(prefill_worker, tokens) and self._has_room(decode_worker, tokens):
            return placement
        free = {name for name in self._workers if self._has_room(name, tokens)}
        if self._holds_back and not free & self._groups[0]:
            return None
        usable = frozenset[str]().union(*((group & free) or group for group in self._groups))
        return policy.place(request, self._cluster.view(now, usable))

    def _has_room(self, name: WorkerId, tokens: int) -> bool:
        worker = self._workers[name]
        scheduler, settings, queued = worker.scheduler, worker.settings, worker.queued_handoffs
        room = replace(
            worker.load.room(),
            total_pages=settings.num_pages,
            free_pages=worker.kv.num_available,
            running=scheduler.num_active,
            starved=scheduler.num_waiting if scheduler.wants_pages else 0,
            incoming=len(worker.kv.reservations),
            queued_handoffs=len(queued),
            queued_pages=sum(-(-request.num_tokens // settings.page_size) for request in queued),
        )
        return room.has_room(tokens)
