"""What a router adds to a placement policy: it sends requests to workers that have room for them.

In fixed modes the policy chooses among the workers with room. A disaggregated request without a decode worker
with room is held back. In adaptive mode it then queues, with its prompt, where its answer will be decoded.
Either way a request waits before its prompt is computed, and holds no KV meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.placement import (
    AdaptivePlacement,
    DisaggPlacement,
    Ledger,
    Placement,
    PlacementPolicy,
    Preference,
    RequestView,
)
from router.placement.view import WorkerId
from router.simulator.worker import SimWorker
from router.workers.capacity import WorkerView

__all__ = ["Routing"]


class Routing:
    """The rules of `router.dispatch.routing`, with `WorkerView.has_room` of the router."""

    def __init__(
        self,
        policy: PlacementPolicy,
        ledger: Ledger,
        workers: Sequence[SimWorker],
        preferences: Sequence[Preference],
    ) -> None:
        self._policy = policy
        self._ledger = ledger
        self._workers = {str(worker.number): worker for worker in workers}
        self._promised = dict.fromkeys(self._workers, 0)
        """Handoffs whose decode worker has not been asked for pages yet."""
        self._promised_pages = dict.fromkeys(self._workers, 0)
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
        placement = policy.place(request, self._ledger.view(now))
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
        return policy.place(request, self._ledger.view(now, usable))

    def promise(self, worker: SimWorker, tokens: int) -> None:
        """A handoff of `tokens` tokens to `worker` begins."""
        self._promised[str(worker.number)] += 1
        self._promised_pages[str(worker.number)] += self._pages(worker, tokens)

    def asked(self, worker: SimWorker, tokens: int) -> None:
        """The worker was asked for the pages of such a handoff."""
        self._promised[str(worker.number)] -= 1
        self._promised_pages[str(worker.number)] -= self._pages(worker, tokens)

    def _pages(self, worker: SimWorker, tokens: int) -> int:
        return -(-tokens // worker.settings.page_size) + 1

    def _has_room(self, name: WorkerId, tokens: int) -> bool:
        worker = self._workers[name]
        scheduler, settings, queued = worker.scheduler, worker.settings, worker.queued_handoffs
        view = WorkerView(
            page_size=settings.page_size,
            max_running=settings.max_running,
            total_pages=settings.num_pages,
            free_pages=worker.kv.num_available,
            running=scheduler.num_active,
            starved=scheduler.num_waiting if scheduler.wants_pages else 0,
            incoming=len(worker.kv.reservations),
            queued_handoffs=len(queued),
            queued_pages=sum(-(-request.num_tokens // settings.page_size) for request in queued),
            promised=self._promised[name],
            promised_pages=self._promised_pages[name],
        )
        return view.has_room(tokens)
