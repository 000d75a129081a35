"""Places each request so that as many requests as possible, including running ones, meet their targets.

For every promising pair of a prefill and a decode worker, TTFT and TPOT are predicted for this request, and
for the requests that it would delay with it and without it. Each prediction gives a probability of missing
its target; the pair with the fewest expected misses wins. There are no thresholds for short prompts, cached
prefixes or busy workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Final

from router.config.choices import Mode, Routing
from router.placement.images import AwaitedRows
from router.placement.policies.by_load import POLICIES, preferred
from router.placement.policies.estimates import Estimates
from router.placement.policies.fixed import DisaggPlacement, MixedPlacement
from router.placement.policies.prefill_pool import PrefillPool
from router.placement.policy import (
    ConsideredPair,
    HandoffRule,
    NoWorker,
    Placement,
    PlacementPolicy,
    QuarantinedPages,
    Why,
)
from router.placement.view import ClusterView, Preference, RequestView, Targets, WorkerId, WorkerView

_INDIFFERENT: Final = 0.002
"""Costs that differ by less (in misses) count as equal; then the workers' preferences decide."""
_SHORTLIST: Final = 6
"""Workers of each kind that are considered for pairs."""


class AdaptivePlacement(PlacementPolicy):
    """O(workers) to make a shortlist, then O(1) pairs.

    A retry runs on one worker only, on which it did not fail. A request also runs on the chosen decode worker
    only if that has no room for its KV now: it queues there without holding pages, where a handoff would hold
    all its pages on the prefill worker.
    """

    handoffs = HandoffRule.ANY_WAY
    predicts = True

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self._estimates = Estimates(targets)
        self._pool = PrefillPool(targets)

    @property
    def prefill_only(self) -> frozenset[WorkerId]:
        """Workers that get no decodes now."""
        return self._pool.current

    def place(self, request: RequestView, view: ClusterView) -> Placement:
        if not view.workers:
            raise NoWorker
        workers, retry_on = _usable(request, view.workers)
        if not workers:
            raise QuarantinedPages
        self._estimates.look(workers)
        prefill_only = self._pool.prefill_workers(workers, view.demand, view.now)
        pairs = self._pairs(request, workers, prefill_only, retry_on)
        candidates = self._candidates(request, view, pairs)
        best = min(candidate.cost for candidate in candidates)
        equal = [i for i, c in enumerate(candidates) if c.cost <= best + _INDIFFERENT]
        chosen = min(
            equal, key=lambda i: (_copied(request, *pairs[i]), _mismatch(*pairs[i]), candidates[i].cost)
        )
        prefill_worker, decode_worker = pairs[chosen]
        exception = ""
        if prefill_worker is not decode_worker and not decode_worker.room.has_room(request.prompt_tokens):
            prefill_worker, exception = decode_worker, "the decode worker has no room for the KV"
        others = sorted((c for i, c in enumerate(candidates) if i != chosen), key=lambda c: c.cost)
        why = Why("adaptive", (candidates[chosen], *others), exception)
        source = None if exception else candidates[chosen].source
        return Placement(prefill_worker.id, decode_worker.id, why, source)

    def encodes_elsewhere(self, request: RequestView, seconds: float, view: ClusterView) -> bool:
        """Compare the cost of the best pair of workers with the images encoded there and elsewhere."""
        awaiting = replace(request, images=(), awaited=AwaitedRows(request.images, seconds))
        here, elsewhere = (self.place(one, view).why.candidates[0] for one in (request, awaiting))
        return elsewhere.cost <= here.cost + _INDIFFERENT

    def _candidates(
        self, request: RequestView, view: ClusterView, pairs: Sequence[tuple[WorkerView, WorkerView]]
    ) -> list[ConsideredPair]:
        estimates = self._estimates
        prefills = {
            worker.id: estimates.prefill(request, view, worker)
            for worker in {prefill_worker.id: prefill_worker for prefill_worker, _ in pairs}.values()
        }
        return [estimates.pair(request, view, prefills[first.id], second) for first, second in pairs]

    def _pairs(
        self,
        request: RequestView,
        workers: Sequence[WorkerView],
        prefill_only: frozenset[WorkerId],
        retry_on: Sequence[WorkerView],
    ) -> list[tuple[WorkerView, WorkerView]]:
        """Pairs of the workers that would compute the prompt soonest and those that decode fastest."""
        estimates, own = self._estimates, request.prompt_tokens

        def wait(worker: WorkerView) -> float:
            tokens = own - (request.cached_on(worker) if request.cached else 0)
            own_s = request.adapter_wait_s(worker) + request.encode_s(worker)
            return estimates.wait(worker, tokens) + own_s

        def step(worker: WorkerView) -> float:
            return estimates.pace(worker).token_s

        if retry_on:
            return [(worker, worker) for worker in nsmallest(_SHORTLIST, retry_on, key=wait)]
        fastest = [worker for worker in workers if worker.id not in prefill_only]
        decode_workers = nsmallest(_SHORTLIST, fastest, key=step)
        return [
            (prefill_worker, decode_worker)
            for prefill_worker in nsmallest(_SHORTLIST, workers, key=wait)
            for decode_worker in _decode_workers_for(prefill_worker, decode_workers, prefill_only)
        ] or [(worker, worker) for worker in decode_workers]


def _usable(
    request: RequestView, workers: Sequence[WorkerView]
) -> tuple[Sequence[WorkerView], Sequence[WorkerView]]:
    """Workers to choose from, and of those the ones that a retry may run on; () for a first attempt."""
    usable = preferred(workers, replace(request, avoid=frozenset()))
    if not request.avoid:
        return usable, ()
    left = preferred(workers, request)
    ids = {worker.id for worker in usable}
    return [*usable, *(worker for worker in left if worker.id not in ids)], left


def _decode_workers_for(
    prefill_worker: WorkerView, decode_workers: Sequence[WorkerView], prefill_only: frozenset[WorkerId]
) -> list[WorkerView]:
    """The decode workers of the shortlist with a free slot, and the prefill worker itself."""
    found = {worker.id: worker for worker in decode_workers if worker.has_slot}
    if prefill_worker.id not in prefill_only:
        found[prefill_worker.id] = prefill_worker
    return list(found.values())


def _copied(request: RequestView, prefill_worker: WorkerView, decode_worker: WorkerView) -> int:
    """Tokens whose cached KV a handoff would copy: from then on it takes the room of other KV twice."""
    return max(0, request.cached_on(prefill_worker) - request.cached_on(decode_worker))


def _mismatch(prefill_worker: WorkerView, decode_worker: WorkerView) -> int:
    """Number of preferences that a pair violates; then, whether KV has to move."""
    against = (prefill_worker.prefers is Preference.DECODE) + (decode_worker.prefers is Preference.PREFILL)
    return 2 * against + (prefill_worker.id != decode_worker.id)


def policy_for(mode: Mode, routing: Routing, targets: Targets) -> PlacementPolicy:
    """`routing` chooses among equal workers in fixed modes; `targets` are those of adaptive mode."""
    match mode:
        case Mode.MIXED:
            return MixedPlacement(POLICIES[routing])
        case Mode.DISAGG:
            return DisaggPlacement(POLICIES[routing])
        case Mode.ADAPTIVE:
            return AdaptivePlacement(targets)
