"""Predicts when a worker's prompts are computed, and how fast its answers decode.

Fluid approximations of the engine's scheduler. A step serves all decodes, and prompts share the rest: the
shortest remaining first, aged by the prompts submitted before them (`engine.config.PATIENCE`).

A worker computes at most `max_running` requests at a time, prompts and answers alike. All waits for such a
slot come before the first token: a request waits on the worker that computes its prompt, and the router sends
KV only to a worker with a free slot. In disaggregated mode it holds the request back until there is one; in
adaptive mode the request queues with its prompt where its answer will be decoded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from engine.config import PATIENCE
from engine.sched.chunk_size.step_targets import longest_step_s, spaced_steps_s
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
    yields: float = 1.0
    """Tokens that an answer gets of a step."""

    @property
    def token_s(self) -> float:
        """Time between tokens without prompts."""
        return self.plain_s / self.yields

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second while there are enough."""
        return self.mixed_tokens / self.mixed_s

    def tpot(self, prefill_share: float) -> float:
        """Mean time between tokens if steps contain prompts for a share `prefill_share` of the time."""
        return 1.0 / (prefill_share / self.mixed_s + (1.0 - prefill_share) / self.plain_s) / self.yields


def pace_of(worker: WorkerView, decodes: int, context_tokens: float, pairs_per_token: float) -> Pace:
    """`pairs_per_token`: mean number of tokens that a prompt token attends to."""
    model, reach, drafting = worker.step_time, worker.reach, worker.drafting
    rows, context_tokens = decodes * drafting.rows, context_tokens * drafting.rows
    context_tokens, pairs_per_token = reach.of(context_tokens, rows), reach.of(pairs_per_token, 1)
    plain = model.seconds(StepWork(0, 0.0, rows, context_tokens))
    tokens = float(max(worker.chunk_tokens - rows, worker.page_size))
    target, pause = worker.step_target_s, worker.pause_target_s
    if target is not None and pause is None:
        target = longest_step_s(target, plain)
    elif target is not None and pause is not None:
        target, pause = spaced_steps_s(target, pause, plain)
    if decodes and pause is not None:
        within = model.prompt_tokens_within(pause, rows, context_tokens, pairs_per_token)
        tokens = min(tokens, max(within, float(_least(worker))))
    mixed = model.seconds(StepWork(round(tokens), tokens * pairs_per_token, rows, context_tokens))
    if decodes and target is not None and plain < target < mixed:
        # Steps with prompts are spaced; as many steps without them follow as keep the mean at the target.
        tokens, mixed = tokens * (target - plain) / (mixed - plain), target
    return Pace(plain, mixed, tokens, drafting.tokens)


def prefill_times(pending: Sequence[float], pace: Pace) -> list[float]:
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


def _work_until_done(pending: Sequence[float]) -> list[float]:
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


def running_answers(worker: WorkerView, more: int = 0, more_tokens: int = 0) -> tuple[int, float]:
    """Decodes that a step has, and their context tokens, with all answers of the worker and `more` others.

    Counts those whose prompts are still to be computed; at most `max_running`.
    """
    answers = worker.answers + more
    context = float(worker.context_tokens + worker.incoming_tokens + more_tokens)
    if worker.max_running is None or answers <= worker.max_running:
        return answers, context
    return worker.max_running, context * worker.max_running / answers


def slot_wait(worker: WorkerView, tpot_s: float, output_tokens: float) -> float:
    """Seconds until a further request gets a slot there, behind all that need one.

    `tpot_s`, `output_tokens`: of the answers there, on average. Slots become free at a steady rate.
    """
    if worker.max_running is None:
        return 0.0
    behind = worker.answers + 1 - worker.max_running
    return max(0, behind) * output_tokens * tpot_s / worker.max_running
