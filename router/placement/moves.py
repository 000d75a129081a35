"""When a running answer should move to another worker, and which: a pure decision, taken at every review.

A worker is overloaded while its predicted ITL exceeds the target, or while its free pages do not last for the
next tokens of all its decodes. One answer moves at a time: the one whose KV costs the link the least for what
its decodes cost the worker. Three rules prevent thrashing: an overload must last for several reviews, no
answer moves twice, and after a move its two workers take part in no other for a while, so that the next
prediction has its effect in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Final

from router.placement.predict import pace_of
from router.placement.view import ClusterView, Targets, WorkerId, WorkerView

__all__ = ["Move", "MoveReason", "Moves", "RunningAnswer", "predicted_itl", "remaining_tokens"]

_REVIEWS: Final = 3
"""In a row at which a worker must be overloaded."""
_PAUSE_S: Final = 2.0
"""From a move until the next that the same worker takes part in: at most 30 a minute for each worker."""
_ROOM: Final = 0.9
"""Of the ITL target: what may be predicted at most for a worker that takes an answer over."""
_LOOKAHEAD_TOKENS: Final = 64
"""Of every decode, for which a worker must have pages."""
_WORTH_TOKENS: Final = 64
"""Still expected of an answer: one that ends sooner stays where it is."""
_PAIRS: Final = 1000.0
"""Tokens that a prompt token attends to, in the mean, where no prompt says so."""


class MoveReason(Enum):
    ITL = "itl"
    PAGES = "pages"


@dataclass(frozen=True, slots=True)
class RunningAnswer:
    id: int
    worker: WorkerId
    """That decodes it."""
    context_tokens: int
    """Of prompt and answer so far."""
    remaining: int
    """Tokens that are still expected."""


@dataclass(frozen=True, slots=True)
class Move:
    answer: int
    source: WorkerId
    target: WorkerId
    reason: MoveReason
    before_s: float
    """Predicted ITL of the source."""
    after_s: float
    """Predicted ITL of the target with the answer."""


class Moves:
    """Names at most one move a review. O(workers), and O(answers) of an overloaded worker."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._overloaded: dict[WorkerId, int] = {}
        """Reviews in a row."""
        self._took_part: dict[WorkerId, float] = {}
        """When a worker last gave or took an answer."""
        self._moved: set[int] = set()
        """Answers that run and have moved."""

    def review(
        self,
        view: ClusterView,
        answers: Sequence[RunningAnswer],
        prefill_only: AbstractSet[WorkerId] = frozenset(),
    ) -> Move | None:
        """`answers`: all that run; `prefill_only`: workers that should get no decodes."""
        self._moved &= {answer.id for answer in answers}
        reasons = {worker.id: self._reason(worker) for worker in view.workers}
        self._overloaded = {
            worker: self._overloaded.get(worker, 0) + 1
            for worker, reason in reasons.items()
            if reason is not None
        }
        for source in sorted(view.workers, key=lambda worker: -_itl(worker)):
            reason = reasons[source.id]
            if (
                reason is None
                or self._overloaded[source.id] < _REVIEWS
                or not self._is_rested(source, view.now)
            ):
                continue
            move = self._from(source, reason, view, answers, prefill_only)
            if move is not None:
                self._moved.add(move.answer)
                self._took_part[move.source] = self._took_part[move.target] = view.now
                self._overloaded.pop(move.source)
                return move
        return None

    def _reason(self, worker: WorkerView) -> MoveReason | None:
        if worker.decodes < 2:
            return None
        if worker.available_pages * worker.page_size < worker.decodes * _LOOKAHEAD_TOKENS:
            return MoveReason.PAGES
        return MoveReason.ITL if _itl(worker) > self._targets.itl_s else None

    def _is_rested(self, worker: WorkerView, now: float) -> bool:
        return now >= self._took_part.get(worker.id, -math.inf) + _PAUSE_S

    def _from(
        self,
        source: WorkerView,
        reason: MoveReason,
        view: ClusterView,
        answers: Sequence[RunningAnswer],
        prefill_only: AbstractSet[WorkerId],
    ) -> Move | None:
        targets = [
            worker
            for worker in view.workers
            if worker.id != source.id
            and worker.id not in prefill_only
            and worker.has_slot
            and self._is_rested(worker, view.now)
        ]
        found = self._candidates(source, view, answers, targets)
        best = max(found, key=lambda candidate: candidate[0], default=None)
        if best is None:
            return None
        _, answer, target, after = best
        return Move(answer.id, source.id, target.id, reason, _itl(source), after)

    def _candidates(
        self,
        source: WorkerView,
        view: ClusterView,
        answers: Sequence[RunningAnswer],
        targets: Sequence[WorkerView],
    ) -> Iterable[tuple[float, RunningAnswer, WorkerView, float]]:
        """Seconds of steps saved for each second of the link, with the answer and where it goes."""
        model = source.step_time
        for answer in answers:
            if answer.worker != source.id or answer.id in self._moved or answer.remaining < _WORTH_TOKENS:
                continue
            saved = answer.remaining * (model.decode + model.row + model.context * answer.context_tokens)
            for target in targets:
                after = predicted_itl(
                    target,
                    target.decodes + target.incoming + 1,
                    target.context_tokens + target.incoming_tokens + answer.context_tokens,
                )
                if after <= _ROOM * self._targets.itl_s and _fits(answer, target):
                    link = view.link_between(source.id, target.id)
                    yield (
                        saved / link.seconds(answer.context_tokens * view.kv_bytes_per_token),
                        answer,
                        target,
                        after,
                    )


def remaining_tokens(expected: int, produced: int, most: int) -> int:
    """Tokens to come of an answer that probably has `expected`; a longer one may get half as long again."""
    return min(max(expected - produced, produced // 2), most - produced)


def predicted_itl(worker: WorkerView, decodes: int, context_tokens: float) -> float:
    """Mean time between tokens on `worker` with this many decodes, and prompts at their current rate."""
    queued = worker.prompt_tokens
    pairs = sum(p.tokens * (p.computed + p.tokens / 2) for p in worker.prompts) / queued if queued else _PAIRS
    pace = pace_of(worker, decodes, context_tokens, pairs)
    reading = max(worker.prompt_rate, queued) / pace.prefill_rate
    return pace.tpot(min(reading, 1.0))


def _itl(worker: WorkerView) -> float:
    return predicted_itl(worker, worker.decodes, worker.context_tokens)


def _fits(answer: RunningAnswer, target: WorkerView) -> bool:
    """With pages for what is still expected of it, and for the next tokens of the decodes that are there."""
    pages = -(-(answer.context_tokens + answer.remaining) // target.page_size)
    own = -(-(target.decodes + target.incoming) * _LOOKAHEAD_TOKENS // target.page_size)
    return pages + own <= target.available_pages
