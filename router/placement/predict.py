"""What a worker will do to its requests: when prompts are read, and how fast answers are written.

Fluid approximations of the engine's scheduler. A step serves all decodes, and prompts share what is left of
it: a quarter goes to the oldest, the rest to those nearest to their end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.placement.step_time import StepWork
from router.placement.view import WorkerView

__all__ = ["Pace", "miss", "pace_of", "reading_times"]

_OLDEST_SHARE: Final = 0.25
_EXACT: Final = 24
"""Prompts up to which sharing is followed one by one; with more, the oldest's share counts as lost."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a worker steps with so many decodes."""

    plain_s: float
    """A step without prompts."""
    mixed_s: float
    """A step with as many prompt tokens as it may have."""
    mixed_tokens: float
    """Those tokens."""

    @property
    def reading_rate(self) -> float:
        """Prompt tokens a second while there are enough."""
        return self.mixed_tokens / self.mixed_s

    def tpot(self, reading: float) -> float:
        """Mean time between tokens if prompts are in the steps for a share `reading` of the time."""
        return 1.0 / (reading / self.mixed_s + (1.0 - reading) / self.plain_s)


def pace_of(worker: WorkerView, decodes: int, context_tokens: float, pairs_per_token: float) -> Pace:
    """`pairs_per_token`: what a prompt token attends to, in the mean."""
    model = worker.step_time
    plain = model.seconds(StepWork(0, 0.0, decodes, context_tokens))
    tokens = float(max(worker.chunk_tokens - decodes, worker.page_size))
    if decodes and worker.step_target_s is not None:
        allowed = model.prompt_tokens_within(worker.step_target_s, decodes, context_tokens, pairs_per_token)
        tokens = min(tokens, max(allowed, float(_least(worker))))
    work = StepWork(round(tokens), tokens * pairs_per_token, decodes, context_tokens)
    return Pace(plain, model.seconds(work), tokens)


def reading_times(pending: Sequence[int], pace: Pace) -> list[float]:
    """Seconds until each prompt's last chunk is computed; `pending` tokens are in order of arrival.

    A step ends for all its prompts at once, and the last one is as short as what is left.
    """
    total = float(sum(pending))
    rate, step = pace.reading_rate, pace.mixed_tokens
    return [min(total, math.ceil(done / step) * step) / rate for done in _work_until_done(pending)]


def miss(ratio: float, uncertainty: float) -> float:
    """Probability that a time predicted to be `ratio` targets long is longer than one.

    `uncertainty`: relative deviation of such predictions.
    """
    x = 1.7 * (ratio - 1.0) / uncertainty
    return 1.0 / (1.0 + math.exp(-min(max(x, -50.0), 50.0)))


def _work_until_done(pending: Sequence[int]) -> list[float]:
    """Tokens computed in all when each prompt is complete. O(n²) up to `_EXACT` prompts, then O(n log n)."""
    order = sorted(range(len(pending)), key=pending.__getitem__)
    done = [0.0] * len(pending)
    if len(pending) > _EXACT:
        work, total = 0.0, float(sum(pending))
        for index in order:
            work += pending[index]
            done[index] = min(work / (1 - _OLDEST_SHARE), total)
        return done
    left = [float(tokens) for tokens in pending]
    work, oldest, position = 0.0, 0, 0
    while position < len(order):
        shortest = order[position]
        if left[shortest] <= 0.0:
            done[shortest] = work if done[shortest] == 0.0 else done[shortest]
            position += 1
            continue
        while oldest < len(left) and left[oldest] <= 0.0:
            oldest += 1
        if oldest == shortest:
            work += left[shortest]
            left[shortest] = 0.0
            continue
        spent = min(left[shortest] / (1 - _OLDEST_SHARE), left[oldest] / _OLDEST_SHARE)
        work += spent
        left[oldest] = _less(left[oldest], spent * _OLDEST_SHARE)
        left[shortest] = _less(left[shortest], spent * (1 - _OLDEST_SHARE))
        if left[oldest] == 0.0:
            done[oldest] = work
    return done


def _less(left: float, spent: float) -> float:
    return left - spent if left - spent > 1e-6 else 0.0


def _least(worker: WorkerView) -> int:
    """Prompts are never starved altogether."""
    return max(64, worker.page_size)
