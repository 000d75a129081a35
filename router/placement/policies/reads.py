"""Places reads: prompts without an answer, in every mode. They take no room to decode, and no KV moves."""

from __future__ import annotations

from typing import Final

from router.placement.policies.by_load import preferred
from router.placement.policies.estimates import Estimates
from router.placement.policy import Placement, QuarantinedPages, Why
from router.placement.view import ClusterView, RequestView, Targets, WorkerId

_SHARED: Final = 2
"""A read stays with the one before it if that worker has cached one in this many tokens of its prompt."""


class ReadPlacement:
    """The worker of any role that computes the prompt soonest, by prediction."""

    def __init__(self) -> None:
        self._estimates = Estimates(Targets(ttft_s=1.0, tpot_s=1.0))  # targets decide about nothing here

    def place(self, request: RequestView, view: ClusterView, before: WorkerId = "") -> Placement:
        """`before`: worker of the read before it in the same request of a client, whose prefix it may share.

        Raises QuarantinedPages. O(prompts).
        """
        workers = preferred(view.workers, request)
        if not workers:
            raise QuarantinedPages
        self._estimates.look(view.workers)
        for worker in workers:
            if worker.id == before and _SHARED * request.cached_on(worker) >= request.prompt_tokens:
                return Placement(before, before, Why("read: has the prefix of the read before it"))
        free = [worker for worker in workers if worker.room.has_room(request.prompt_tokens)] or workers
        found = [self._estimates.prefill(request, view, worker) for worker in free]
        best = min(found, key=lambda e: (e.seconds, e.worker.answers, e.worker.tokens, e.worker.requests))
        why = Why(f"read: expected in {best.seconds * 1e3:.0f} ms")
        return Placement(best.worker.id, best.worker.id, why, best.source)
