"""Places each request so that as many requests as possible, including running ones, meet their targets.

For every promising pair of a prefill and a decode worker, TTFT and TPOT are predicted for this request, and
for the requests that it would delay with it and without it. Each prediction gives a probability of missing
its target; the pair with the fewest expected misses wins. There are no thresholds for short prompts, cached
prefixes or busy workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from router.placement.plan import PrefillSplit
from router.placement.policies import Candidate, NoWorker, Placement, Why
from router.placement.predict import Pace, miss, pace_of, prefill_times
from router.placement.view import ClusterView, Preference, RequestView, Targets, WorkerId, WorkerView

__all__ = ["AdaptivePlacement"]

_TTFT_UNCERTAINTY: Final = 0.15
"""Relative standard deviation of predicted TTFT: the width of the transition from hit to miss."""
_TPOT_UNCERTAINTY: Final = 0.015
"""The same for TPOT, which the scheduler's ITL controller bounds near its target."""
_DELAY_WEIGHT: Final = 0.02
"""Cost of a delay of one target, in misses: of two choices with equal misses, prefers the faster one."""
_LATE_WEIGHT: Final = 0.2
"""Cost of a late TTFT, in misses, per target length beyond the target: requests that miss it still wait."""
_INDIFFERENT: Final = 0.002
"""Costs that differ by less (in misses) count as equal; then the workers' preferences decide."""
_SHORTLIST: Final = 6
"""Workers of each kind that are considered for pairs."""


@dataclass(frozen=True, slots=True)
class _PrefillEstimate:
    """Prediction for a worker if it computed the prompt."""

    worker: WorkerView
    ttft_s: float
    misses: float
    """Additional expected misses of the prompts that the worker already has."""
    delay: float
    """Additional delay of those prompts, in targets."""


class AdaptivePlacement:
    """Implements PlacementPolicy. O(workers) to make a shortlist, then O(1) pairs."""

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self._split = PrefillSplit(targets)
        self._seen: dict[WorkerId, tuple[WorkerView, Pace, int]] = {}
        """For each worker, the last view with its pace and prompt tokens."""

    def place(self, request: RequestView, view: ClusterView) -> Placement:
        if not view.workers:
            raise NoWorker("no worker is ready")
        self._look(view.workers)
        prefill_only = self._split.prefill_workers(view.workers, view.demand, view.now)
        prefill_workers, decode_workers = self._shortlist(request, view.workers, prefill_only)
        estimates = [self._reading(request, view, worker) for worker in prefill_workers]
        candidates = [
            (self._candidate(request, view, reading, decode_worker), reading.worker, decode_worker)
            for reading in estimates
            for decode_worker in _decode_workers_for(reading.worker, decode_workers, prefill_only)
        ]
        best = min(candidate.cost for candidate, _, _ in candidates)
        equal = [c for c in candidates if c[0].cost <= best + _INDIFFERENT]
        chosen, prefill_worker, decode_worker = min(equal, key=lambda c: (_mismatch(c[1], c[2]), c[0].cost))
        considered = sorted((c for c, _, _ in candidates if c is not chosen), key=lambda c: c.cost)
        return Placement(prefill_worker.id, decode_worker.id, Why("adaptive", (chosen, *considered)))

    def _look(self, workers: Sequence[WorkerView]) -> None:
        """Views are immutable, so results are reused as long as the caller passes the same view."""
        seen = self._seen
        for worker in workers:
            known = seen.get(worker.id)
            if known is None or known[0] is not worker:
                seen[worker.id] = worker, _pace(worker), worker.prompt_tokens
        if len(seen) > len(workers):
            self._seen = {worker.id: seen[worker.id] for worker in workers}

    def _shortlist(
        self,
        request: RequestView,
        workers: Sequence[WorkerView],
        prefill_only: frozenset[WorkerId],
    ) -> tuple[list[WorkerView], list[WorkerView]]:
        """The workers that would compute the prompt soonest, and those that decode fastest."""
        seen = self._seen
        own = request.prompt_tokens

        def wait(worker: WorkerView) -> float:
            _, pace, queued = seen[worker.id]
            cached = request.cached_on(worker) if request.cached else 0
            return (own - cached + queued) / pace.prefill_rate

        def step(worker: WorkerView) -> float:
            return seen[worker.id][1].plain_s

        decode_workers = [worker for worker in workers if worker.id not in prefill_only]
        return nsmallest(_SHORTLIST, workers, key=wait), nsmallest(_SHORTLIST, decode_workers, key=step)

    def _reading(self, request: RequestView, view: ClusterView, worker: WorkerView) -> _PrefillEstimate:
        cached = request.cached_on(worker)
        pace = self._seen[worker.id][1]
        before = [prompt.tokens for prompt in worker.prompts]
        with_it = [*before, request.prompt_tokens - cached]
        times = prefill_times(with_it, pace)
        in_flight = _in_flight(worker, pace)
        waited = view.now - request.arrived
        misses = delay = 0.0
        if before:
            alone = prefill_times(before, pace)
            for prompt, then, now in zip(worker.prompts, times, alone, strict=False):
                age = view.now - prompt.arrived + in_flight
                target = self.targets.ttft_s
                misses += miss((age + then) / target, _TTFT_UNCERTAINTY) - miss(
                    (age + now) / target, _TTFT_UNCERTAINTY
                )
                misses += _LATE_WEIGHT * (max(1.0, (age + then) / target) - max(1.0, (age + now) / target))
                delay += (then - now) / target
        return _PrefillEstimate(worker, waited + in_flight + times[-1], misses, delay)

    def _candidate(
        self, request: RequestView, view: ClusterView, reading: _PrefillEstimate, decode_worker: WorkerView
    ) -> Candidate:
        prefill_worker = reading.worker
        local = prefill_worker.id == decode_worker.id
        tokens = request.prompt_tokens - request.cached_on(prefill_worker)
        tpot, misses, delay = self._writing(request, decode_worker, tokens if local else 0)
        if not local:
            _, more, longer = self._slowdown(prefill_worker, request, tokens)
            misses, delay = misses + more, delay + longer
            moved = (request.prompt_tokens - request.cached_on(decode_worker)) * view.kv_bytes_per_token
            handoff = view.link_between(prefill_worker.id, decode_worker.id).seconds(moved)
            tpot += handoff / max(request.expected_output - 1, 1)
        own = 1 - (1 - miss(reading.ttft_s / self.targets.ttft_s, _TTFT_UNCERTAINTY)) * (
            1 - miss(tpot / self.targets.itl_s, _TPOT_UNCERTAINTY)
        )
        misses += own + reading.misses + _LATE_WEIGHT * max(0.0, reading.ttft_s / self.targets.ttft_s - 1.0)
        delay += reading.delay + reading.ttft_s / self.targets.ttft_s + tpot / self.targets.itl_s
        if not _fits(request, decode_worker):
            misses += 1.0
        cost = misses + _DELAY_WEIGHT * delay
        return Candidate(prefill_worker.id, decode_worker.id, reading.ttft_s, tpot, misses, cost)

    def _writing(
        self, request: RequestView, worker: WorkerView, prompt_tokens: int
    ) -> tuple[float, float, float]:
        """TPOT of this request on that worker, and the misses and delays that it causes there.

        They are caused by its decode and, if it is computed there, by its prompt.
        """
        decodes, context = _decodes(worker)
        pairs = _pairs(worker)
        more = pace_of(worker, decodes + 1, context + request.prompt_tokens, pairs)
        before = pace_of(worker, decodes, context, pairs) if decodes else more
        slower = more.tpot(self._prefill_share(worker, more, request, prompt_tokens))
        faster = before.tpot(self._prefill_share(worker, before, request, 0))
        target = self.targets.itl_s
        change = miss(slower / target, _TPOT_UNCERTAINTY) - miss(faster / target, _TPOT_UNCERTAINTY)
        # One more decode slows down the prompts that the worker already has.
        queued = worker.prompt_tokens / more.prefill_rate - worker.prompt_tokens / before.prefill_rate
        delay = decodes * (slower - faster) / target + max(0.0, queued) / self.targets.ttft_s
        return slower, decodes * change, delay

    def _slowdown(
        self, worker: WorkerView, request: RequestView, prompt_tokens: int
    ) -> tuple[float, float, float]:
        """Misses and delays caused by a prompt whose answer is decoded on another worker."""
        decodes, context = _decodes(worker)
        if not decodes:
            return 0.0, 0.0, 0.0
        pace = pace_of(worker, decodes, context, _pairs(worker))
        slower = pace.tpot(self._prefill_share(worker, pace, request, prompt_tokens))
        faster = pace.tpot(self._prefill_share(worker, pace, request, 0))
        target = self.targets.itl_s
        change = miss(slower / target, _TPOT_UNCERTAINTY) - miss(faster / target, _TPOT_UNCERTAINTY)
        return slower, decodes * change, decodes * (slower - faster) / target

    def _prefill_share(self, worker: WorkerView, pace: Pace, request: RequestView, more: int) -> float:
        """Share of the time of an answer during which steps contain prompts."""
        horizon = max(request.expected_output * pace.plain_s, 1e-6)
        queued = (worker.prompt_tokens + more) / pace.prefill_rate / horizon
        usual = worker.prompt_rate / pace.prefill_rate
        return min(1.0, max(queued, usual + more / pace.prefill_rate / horizon))


def _decode_workers_for(
    prefill_worker: WorkerView, decode_workers: Sequence[WorkerView], prefill_only: frozenset[WorkerId]
) -> list[WorkerView]:
    """The decode workers of the shortlist, and the prefill worker itself."""
    found = {decode_worker.id: decode_worker for decode_worker in decode_workers}
    if prefill_worker.id not in prefill_only:
        found[prefill_worker.id] = prefill_worker
    return list(found.values())


def _pace(worker: WorkerView) -> Pace:
    decodes, context = _decodes(worker)
    return pace_of(worker, decodes, context, _pairs(worker))


def _decodes(worker: WorkerView) -> tuple[int, float]:
    """Running decodes, and requests that will decode here after their prompts."""
    return worker.decodes + worker.incoming, worker.context_tokens + worker.incoming_tokens


def _pairs(worker: WorkerView) -> float:
    """Mean number of tokens that a prompt token of this worker attends to."""
    total = worker.prompt_tokens
    if not total:
        return 1000.0
    return sum(p.tokens * (p.computed + p.tokens / 2) for p in worker.prompts) / total


def _in_flight(worker: WorkerView, pace: Pace) -> float:
    """Mean remaining time of the step in flight."""
    if worker.prompts:
        share = min(1.0, worker.prompt_tokens / pace.mixed_tokens)
        return 0.5 * (pace.plain_s + share * (pace.mixed_s - pace.plain_s))
    return 0.5 * pace.plain_s if worker.decodes else 0.0


def _fits(request: RequestView, worker: WorkerView) -> bool:
    pages = -(-(request.prompt_tokens + request.expected_output) // worker.page_size)
    return pages <= worker.available_pages


def _mismatch(prefill_worker: WorkerView, decode_worker: WorkerView) -> int:
    """Number of preferences that a pair violates; then, whether KV has to move."""
    against = (prefill_worker.prefers is Preference.DECODE) + (decode_worker.prefers is Preference.PREFILL)
    return 2 * against + (prefill_worker.id != decode_worker.id)
