"""Sizes the prompt tokens of a step to meet a target for inter-token latency (ITL)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from engine.core.plan import StepPlan

_SMALLEST: Final = 64
"""Smallest budget, so that prompts make progress however late the decodes are."""
_STEP: Final = 0.5
"""Damping: the share of the suggested change that one step makes, since contexts vary between steps."""


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
    b, so nothing has to be fitted.
    """

    def __init__(self, target_s: float, largest: int) -> None:
        self.target_s = target_s
        self._largest = largest
        self._budget = float(min(512, largest))

    @property
    def budget(self) -> int:
        """Largest cost of the prompt tokens of the next step."""
        return int(self._budget)

    def observe(self, cost: float, seconds: float) -> None:
        """A step with decodes and prompt tokens of this cost completed `seconds` after the step before it."""
        suggested = cost * self.target_s / max(seconds, 1e-6)
        if cost < self._budget / 2 and suggested >= cost:
            return  # within the target, but too small to extrapolate to a full step
        suggested = min(max(suggested, self._budget / 2), self._budget * 1.5)
        moved = self._budget + _STEP * (suggested - self._budget)
        self._budget = min(max(moved, _SMALLEST), self._largest)


def whole_tiles(num_tokens: int, tile: int) -> int:
    """`num_tokens` rounded to whole tiles; to half tiles if it is small.

    Matrix kernels compute whole tiles of rows. The products of an 8B model on an H200 take 9.6 ms for 512
    tokens, 10.9 ms for 528, and 9.2 ms for 416.
    """
    step = tile if num_tokens >= 3 * tile else max(tile // 2, 1)
    return max(round(num_tokens / step), 1) * step
