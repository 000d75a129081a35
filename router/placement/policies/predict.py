"""Predicts when a worker's prompts are computed, and how fast its answers decode.

Fluid approximations of the engine's scheduler. A step serves all decodes, and prompts share the rest: the
shortest remaining first, aged by the prompts submitted before them (`engine.config.PATIENCE`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from engine.config import PATIENCE
from router.placement.step_time import StepWork
from router.placement.view import WorkerView


@dataclass(frozen=True, slots=True)
class Pace:
    """Step times of a worker with a given number of decodes."""

    plain_s: float
    """Time of a step without prompts."""
    mixed_s: float
    """Mean time of a step while there are enough prompts."""
    mixed_tokens: float
    """Prompt tokens of a step, on average over the same steps."""

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second while there are enough."""
        return self.mixed_tokens / self.mixed_s

    def tpot(self, reading: float) -> float:
        """Mean time between tokens if steps contain prompts for a share `reading` of the time."""
        return 1.0 / (reading / self.mixed_s + (1.0 - reading) / self.plain_s)


def pace_of(worker: WorkerView, decodes: int, context_tokens: float, pairs_per_token: float) -> Pace:
    """`pairs_per_token`: mean number of tokens that a prompt token attends to."""
    model, reach = worker.step_time, worker.reach
    context_tokens, pairs_per_token = reach.of(context_tokens, decodes), reach.of(pairs_per_token, 1)
    plain = model.seconds(StepWork(0, 0.0, decodes, context_tokens))
    tokens = float(max(worker.chunk_tokens - decodes, worker.page_size))
    if decodes and worker.pause_target_s is not None:
        within = model.prompt_tokens_within(worker.pause_target_s, decodes, context_tokens, pairs_per_token)
        tokens = min(tokens, max(within, float(_least(worker))))
    target = worker.step_target_s
    if decodes and target is not None and target <= plain:
        tokens = min(tokens, float(_least(worker)))
    mixed = model.seconds(StepWork(round(tokens), tokens * pairs_per_token, decodes, context_tokens))
    if decodes and target is not None and plain < target < mixed:
        # Steps with prompts are spaced; as many steps without them follow as keep the mean at the target.
        tokens, mixed = tokens * (target - plain) / (mixed - plain), target
    return Pace(plain, mixed, tokens)


def prefill_times(pending: Sequence[int], pace: Pace) -> list[float]:
    """Seconds until each prompt's last chunk is computed; `pending` tokens are in order of arrival.

    A step ends for all its prompts at once; the last step is as short as the remaining work.
    """
    total = float(sum(pending))
    rate, step = pace.prefill_rate, pace.mixed_tokens
    return [min(total, math.ceil(done / step) * step) / rate for done in _work_until_done(pending)]


def miss(ratio: float, uncertainty: float) -> float:
    """Probability that a time predicted as `ratio` targets exceeds one target.

    `uncertainty`: relative deviation of such predictions.
    """
    x = 1.7 * (ratio - 1.0) / uncertainty
    return 1.0 / (1.0 + math.exp(-min(max(x, -50.0), 50.0)))


def _work_until_done(pending: Sequence[int]) -> list[float]:
    """Total tokens computed by the time each prompt is complete. O(n log n)."""
    earlier = [0, *accumulate(pending)][: len(pending)]
    turns = [tokens + before / PATIENCE for tokens, before in zip(pending, earlier, strict=True)]
    done = [0.0] * len(pending)
    work = 0.0
    for index in sorted(range(len(pending)), key=turns.__getitem__):
        work += pending[index]
        done[index] = work
    return done


def _least(worker: WorkerView) -> int:
    """Lower bound of prompt tokens per step, so that prompts are not starved."""
    return max(64, worker.page_size)
