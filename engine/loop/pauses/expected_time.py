"""How long a step is expected to take, by the steps before it."""

from __future__ import annotations

from typing import Final

from engine.sched.timing.line_fit import LineFit

_WEIGHT: Final = 0.1
"""Weight of the newest step in the time of decodes."""
_MEMORY: Final = 0.98
"""Weight of a step with prompts relative to the next one."""
_OUTLIER: Final = 3.0
"""A step counts at most this many times what was expected: a pause is not the device's speed."""


class ExpectedTime:
    """Decodes by the size of their batch, in powers of two; prompts as a line over their cost.

    In contrast to `PlanTiming` it is not in a hurry: it follows the load within tens of steps, and one long
    step does not change it.
    """

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}
        self._prompts = LineFit(_MEMORY)
        self._cost_sum = self._seconds_sum = 0.0

    def of(self, cost: float, decodes: int) -> float:
        """Seconds of a step with prompts of this cost; 0 if no such step was observed."""
        plain = self._plain_of(decodes)
        if not cost:
            return plain
        if not self._cost_sum:
            return 0.0
        # The line where the costs of steps differ; their mean rate beyond the largest of them.
        return plain + max(self._prompts.at(cost), cost * self._seconds_sum / self._cost_sum)

    def observe(self, cost: float, decodes: int, seconds: float) -> None:
        """A step took `seconds` since the one before it."""
        expected = self.of(cost, decodes)
        seconds = min(seconds, _OUTLIER * expected) if expected else seconds
        if not cost:
            size = decodes.bit_length()
            known = self._plain.get(size, seconds)
            self._plain[size] = known + _WEIGHT * (seconds - known)
            return
        own = max(seconds - self._plain_of(decodes), 0.0)
        self._prompts.observe(cost, own)
        self._cost_sum = _MEMORY * self._cost_sum + cost
        self._seconds_sum = _MEMORY * self._seconds_sum + own

    def _plain_of(self, decodes: int) -> float:
        """Time of a plain step at the nearest batch size; the smaller one if two are equally near."""
        if not decodes or not self._plain:
            return 0.0
        size = decodes.bit_length()
        known = self._plain.get(size)
        return self._plain[min(self._plain, key=lambda other: abs(other - size))] if known is None else known
