"""Decides how many workers only prefill, for the current load: the slow part of the adaptive policy.

A worker without decodes prefills in long steps, which is efficient; one with decodes does so in short steps
beside them. The best split of the workers for a load follows from the step-time model and the targets:

* few or no prefill workers if short steps waste little (lenient TPOT target, short contexts, light load);
* more prefill workers if decodes leave little of a step, or if the TTFT target is tight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from router.placement.policies.predict import Pace, miss, pace_of
from router.placement.view import Demand, Preference, Targets, WorkerId, WorkerView

_ROUNDS: Final = 4
"""Iterations of the fixed point of TPOT and the number of decodes."""
_REVIEWS: Final = 4
"""Reviews of the split during the time of one answer."""
_WORTH_IT: Final = 0.01
"""Smallest gain of a change, as a share of all requests: less is within the model's error."""
_LATE_WEIGHT: Final = 1.0


class PrefillPool:
    """Maintains the set of prefill workers, and changes it by one worker at a time.

    A change is made only if each of the last `_REVIEWS` reviews, spread over the time of an answer, predicted
    that it saves requests. Decodes that were placed earlier have to end before a change has any effect, so
    faster changes would only follow bursts.
    """

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._prefill_workers: frozenset[WorkerId] = frozenset()
        self._known: frozenset[WorkerId] = frozenset()
        self._reviewed_at = -math.inf
        self._wanted = 0
        """Consecutive reviews in favour of one prefill worker more (positive) or fewer (negative)."""

    @property
    def current(self) -> frozenset[WorkerId]:
        """As of the last review."""
        return self._prefill_workers

    def prefill_workers(
        self, workers: Sequence[WorkerView], demand: Demand, now: float
    ) -> frozenset[WorkerId]:
        """Ids of the workers that should get no decodes now; never all workers. O(workers)."""
        known = frozenset(worker.id for worker in workers)
        if known != self._known:
            self._join(workers, known)
        elif demand.requests_per_s > 0.0 and now >= self._reviewed_at + self._interval(demand):
            self._reviewed_at = now
            self._review(workers, demand)
        return self._prefill_workers

    def _join(self, workers: Sequence[WorkerView], known: frozenset[WorkerId]) -> None:
        """Workers joined or left: others keep their role, new ones begin without one.

        A worker is reserved only because the load asks for it: decodes that gather on the others because of a
        role given in advance stay there for as long as their answers take.
        """
        prefill_workers = self._prefill_workers & known
        order = preferred_prefill_workers(workers, prefill_workers)
        self._prefill_workers = frozenset(
            worker.id for worker in order[: min(len(prefill_workers), len(workers) - 1)]
        )
        self._known = known
        self._wanted = 0

    def _interval(self, demand: Demand) -> float:
        return demand.output_tokens * self._targets.tpot_s / _REVIEWS

    def _review(self, workers: Sequence[WorkerView], demand: Demand) -> None:
        order = preferred_prefill_workers(workers, self._prefill_workers)
        demand = with_running_answers(demand, workers)
        count = len(self._prefill_workers)
        now, more, fewer = (
            expected_misses(order[:k], order[k:], demand, self._targets) if 0 <= k < len(order) else math.inf
            for k in (count, count + 1, count - 1)
        )
        if min(more, fewer) > now - _WORTH_IT:
            self._wanted = 0
            return
        step = 1 if more < fewer else -1
        self._wanted = self._wanted + step if self._wanted * step > 0 else step
        if abs(self._wanted) >= _REVIEWS:
            self._wanted = 0
            self._prefill_workers = frozenset(worker.id for worker in order[: count + step])


def preferred_prefill_workers(
    workers: Sequence[WorkerView], prefill_workers: frozenset[WorkerId] = frozenset()
) -> list[WorkerView]:
    """Current prefill workers first, then those that prefer prefill, then those with the fewest decodes."""
    rank = {Preference.PREFILL: 0, Preference.BOTH: 1, Preference.DECODE: 2}
    return sorted(
        workers, key=lambda w: (w.id not in prefill_workers, rank[w.prefers], w.decodes + w.incoming)
    )


def expected_misses(
    prefill_workers: Sequence[WorkerView],
    decode_workers: Sequence[WorkerView],
    demand: Demand,
    targets: Targets,
) -> float:
    """Long-run share of requests that miss a target if `prefill_workers` only prefill.

    Above 1 if the load exceeds the capacity. Assumes that prompts are distributed in proportion to capacity,
    and that the time to compute one is exponential with mean service / (1 - load), as with processor sharing.
    """
    pairs = demand.attention / max(demand.prompt_tokens, 1.0)
    clean = [pace_of(worker, 0, 0.0, pairs) for worker in prefill_workers]
    tpot = targets.tpot_s
    mixed: list[Pace] = []
    load = answers = 0.0
    for _ in range(_ROUNDS):
        answers = demand.requests_per_s * demand.output_tokens * tpot
        mixed = [_decoding(worker, answers / len(decode_workers), demand, pairs) for worker in decode_workers]
        rates = [pace.prefill_rate for pace in (*clean, *mixed)]
        load = demand.requests_per_s * demand.prompt_tokens / sum(rates)
        tpot = sum(pace.tpot(min(load, 1.0)) for pace in mixed) / len(mixed)
        tpot = min(tpot, 4 * targets.tpot_s)
    late = 0.0
    for pace in (*clean, *mixed):
        service = demand.prompt_tokens / pace.prefill_rate + pace.mixed_s / 2
        tail = math.exp(-targets.ttft_s * max(0.0, 1.0 - load) / service)
        late += tail * pace.prefill_rate
    slots = sum(worker.max_running or math.inf for worker in decode_workers)
    late = late / sum(rates) + _LATE_WEIGHT * max(0.0, load - 1.0, answers / slots - 1.0)
    slow = miss(tpot / targets.tpot_s, 0.05) + _LATE_WEIGHT * max(0.0, tpot / targets.tpot_s - 1.0)
    return late + slow


def with_running_answers(demand: Demand, workers: Sequence[WorkerView]) -> Demand:
    """`demand` with at least the mean answer that the tokens per second imply which are decoded now.

    When answers get longer, those that have ended are the short ones for as long as the long ones take.
    """
    pairs = demand.attention / max(demand.prompt_tokens, 1.0)
    tokens_per_s = 0.0
    for worker in workers:
        if worker.decodes:
            pace = pace_of(worker, worker.decodes, worker.context_tokens, pairs)
            tokens_per_s += worker.decodes / pace.tpot(min(1.0, worker.prompt_rate / pace.prefill_rate))
    implied = tokens_per_s / demand.requests_per_s
    return replace(demand, output_tokens=max(demand.output_tokens, implied))


def _decoding(worker: WorkerView, answers: float, demand: Demand, pairs: float) -> Pace:
    """Pace of a worker with this many answers; it decodes as many at a time as it has slots."""
    decodes = min(answers, worker.max_running or math.inf)
    return pace_of(worker, max(1, math.ceil(decodes)), decodes * demand.context_tokens, pairs)
