"""Sizes the prompt tokens of a step to meet a target for inter-token latency (ITL)."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from engine.core.plan import StepPlan
from engine.sched.chunk_size.step_targets import longest_step_s

SMALLEST: Final = 64
"""Smallest budget, so that prompts make progress however late the decodes are."""
_STEP: Final = 0.5
"""Damping: the share of the suggested change that one step makes, since contexts vary between steps."""
_PLAIN_STEPS: Final = 3
"""Steps without prompts whose median is the time of decodes alone: where the host sees the end of a step
late, that step looks too long, and the next one too short."""
_PLAIN_EVERY: Final = 256
"""Steps with prompts after which decodes get a step of their own, to be measured."""


@dataclass(frozen=True, slots=True)
class PromptCost:
    """Cost of prompt tokens, in units of a token without context."""

    costly_context: float = math.inf
    """Tokens of context at which attention costs as much as everything else."""

    def of(self, start: int, length: int) -> float:
        return length * (1 + (start + length / 2) / self.costly_context)

    def of_step(self, plan: StepPlan) -> float:
        return sum(self.of(chunk.start, chunk.length) for chunk in plan.prompts)


class ITLController:
    """Keeps the time between two steps near a target by sizing prompt chunks.

    A step takes a + b * n seconds for prompt tokens of cost n, where a (the decodes) and b (the model) change
    slowly. The iteration n * target / time converges to the n at which a step takes `target`, for any a and
    b, so nothing has to be fitted. A step in time raises the budget or leaves it; only one that exceeds the
    target lowers it. Otherwise steps that are not full, which most are, would shrink the budget to the size
    of the prompts that happen to arrive. Where a is most of the target, or exceeds it, steps may take half as
    long again as a (`longest_step_s`); a is the time of steps without prompts.
    """

    def __init__(self, target_s: float, largest: int) -> None:
        self.target_s = target_s
        self._largest = largest
        self._budget = float(min(512, largest))
        self._plain: deque[float] = deque(maxlen=_PLAIN_STEPS)
        """Seconds of the last steps without prompts."""
        self._since_plain = 0
        """Steps with prompts since the last without."""

    @property
    def budget(self) -> int:
        """Largest cost of the prompt tokens of the next step; 0: decodes alone are measured."""
        due = self._since_plain > 0 and self._since_plain % _PLAIN_EVERY == 0
        return 0 if due else self.usual_budget

    @property
    def usual_budget(self) -> int:
        """`budget` of a step that may contain prompts."""
        return int(self._budget)

    @property
    def _plain_s(self) -> float:
        """Seconds of a step without prompts; 0: not measured yet."""
        return sorted(self._plain)[(len(self._plain) - 1) // 2] if self._plain else 0.0

    def observe(self, cost: float, seconds: float) -> None:
        """A step with decodes, and prompt tokens of this cost or 0, completed `seconds` after the one before
        it."""
        if not cost:
            self._plain.append(seconds)
            self._since_plain = 0
            return
        self._since_plain += 1
        longest_s = longest_step_s(self.target_s, self._plain_s)
        suggested = cost * longest_s / max(seconds, 1e-6)
        if seconds <= longest_s:
            if suggested <= self._budget:
                return  # a lower bound: decodes take a larger part of this step than of a full one
        elif cost < self._budget / 2:
            return  # something else took the time
        suggested = min(max(suggested, self._budget / 2), self._budget * 1.5)
        moved = self._budget + _STEP * (suggested - self._budget)
        self._budget = min(max(moved, SMALLEST), self._largest)


def whole_tiles(num_tokens: int, tile: int, least: int = 1) -> int:
    """`num_tokens` rounded to whole tiles; to half tiles if it is small. At least `least`.

    Matrix kernels compute whole tiles of rows. The products of an 8B model on an H200 take 9.6 ms for 512
    tokens, 10.9 ms for 528, and 9.2 ms for 416.
    """
    step = tile if num_tokens >= 3 * tile else max(tile // 2, 1)
    return max(round(num_tokens / step), -(-least // step)) * step
