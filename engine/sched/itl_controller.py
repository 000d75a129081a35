"""How many prompt tokens a step may take along without making those who decode wait too long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from engine.core.plan import StepPlan

__all__ = ["ITLController", "PromptCost", "whole_tiles"]

_SMALLEST: Final = 64
"""Prompts are never starved altogether, however late the decodes are."""
_STEP: Final = 0.5
"""How far the budget moves at once towards what a step suggests; contexts differ from step to step."""


@dataclass(frozen=True, slots=True)
class PromptCost:
    """What prompt tokens cost, counted in tokens that have no context to attend to."""

    costly_context: float = math.inf
    """Tokens of context at which attention costs as much as all else."""

    def of(self, start: int, length: int) -> float:
        return length * (1 + (start + length / 2) / self.costly_context)

    def of_step(self, plan: StepPlan) -> float:
        return sum(self.of(chunk.start, chunk.length) for chunk in plan.chunks if chunk.length > 1)


class ITLController:
    """Keeps the time between two steps near a target by the size of prompt chunks.

    A step takes a + b * n for prompt tokens that cost n, where a (the decodes) and b (the model) change
    slowly. n * target / time has its fixed point where the step takes `target`, and comes nearer to it each
    time, whatever a and b are: there is nothing to fit.
    """

    def __init__(self, target_s: float, largest: int) -> None:
        self.target_s = target_s
        self._largest = largest
        self._budget = float(min(512, largest))

    @property
    def budget(self) -> int:
        """What prompt tokens of the next step may cost."""
        return int(self._budget)

    def observe(self, cost: float, seconds: float) -> None:
        """A step with decodes and with prompt tokens of this cost came `seconds` after the one before."""
        suggested = cost * self.target_s / max(seconds, 1e-6)
        if cost < self._budget / 2 and suggested >= cost:
            return  # in time, but so small that it says little about a full one
        suggested = min(max(suggested, self._budget / 2), self._budget * 1.5)
        moved = self._budget + _STEP * (suggested - self._budget)
        self._budget = min(max(moved, _SMALLEST), self._largest)


def whole_tiles(num_tokens: int, tile: int) -> int:
    """The number nearest to `num_tokens` of which no tile is left half empty; half tiles if there are few.

    Matrix kernels compute tiles of rows. The matrices of an 8B model take an H200 9.6 ms for 512 tokens, 10.9
    for 16 more, and 9.2 for 416.
    """
    step = tile if num_tokens >= 3 * tile else max(tile // 2, 1)
    return max(round(num_tokens / step), 1) * step
