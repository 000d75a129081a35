"""Decides whether a step was slow, and names one cause. It has no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.loop.pauses.causes import Cause
from engine.loop.pauses.laps import Seconds

PAUSE_S: Final = 0.05
"""Readers notice pauses between tokens from here on, or from a little more on the way to them."""
SLOW: Final = 3.0
"""A step is slow if it takes more than this many times what was expected,"""
_LEAST_S: Final = 0.01
"""and at least this much more."""
_USUAL: Final = 1.6
"""Pauses count from this multiple of the mean step on, where that is long."""
_AS_EXPECTED: Final = 1.5
"""A slow step that takes less than this many times what was expected has the cause WORK."""
_USES_DRIVER: Final = frozenset(
    {Cause.BATCH, Cause.ENCODE, Cause.LAUNCH, Cause.DEVICE, Cause.HANDOFF, Cause.COPIES}
)
_WEIGHT: Final = 0.05
"""Weight of the newest step in what parts usually take."""


@dataclass(frozen=True, slots=True)
class SlowStep:
    cause: Cause
    seconds: float
    expected_s: float
    """0: unknown."""
    parts: Seconds


class SlowSteps:
    """Compares the parts of each step with what they usually take."""

    def __init__(self) -> None:
        self._usual: Seconds = {}
        self._mean_s = 0.0

    def is_slow(self, seconds: float, expected_s: float) -> bool:
        """`expected_s`: 0 if it is unknown."""
        if expected_s and seconds > max(SLOW * expected_s, expected_s + _LEAST_S):
            return True
        return seconds > max(PAUSE_S, _USUAL * self._mean_s)

    def usual(self, parts: Seconds) -> None:
        """A step was not slow. O(parts)."""
        usual = self._usual
        self._average(sum(parts.values()))
        for part in (usual | parts) if len(parts) != len(usual) else usual:
            known = usual.get(part, 0.0)
            usual[part] = known + _WEIGHT * (parts.get(part, 0.0) - known)

    def named(self, parts: Seconds, expected_s: float, *, allocated: bool = False) -> SlowStep:
        """Describe a slow step: its cause is the part that took longest beyond what it usually takes.

        The device is expected to take what the other parts usually leave of the step. `allocated`: the driver
        has allocated or freed memory meanwhile, which makes a part that uses it long.
        """
        seconds = sum(parts.values())
        if seconds < _AS_EXPECTED * expected_s:
            self.usual(parts)
            return SlowStep(Cause.WORK, seconds, expected_s, parts)
        self._average(seconds)
        usual = dict(self._usual)
        others = sum(usual.values()) - usual.get(Cause.DEVICE, 0.0)
        usual[Cause.DEVICE] = max(usual.get(Cause.DEVICE, 0.0), expected_s - others)
        cause = max(parts, key=lambda part: parts[part] - usual.get(part, 0.0))
        if allocated and cause in _USES_DRIVER:
            known = usual.get(cause, 0.0)
            parts = parts | {cause: known, Cause.ALLOCATION: parts[cause] - known}
            cause = Cause.ALLOCATION
        return SlowStep(cause, seconds, expected_s, parts)

    def _average(self, seconds: float) -> None:
        """Slow steps count, too, or the mean would never follow a load whose steps all take longer."""
        counted = min(seconds, SLOW * self._mean_s) if self._mean_s else seconds
        self._mean_s += (_WEIGHT if self._mean_s else 1.0) * (counted - self._mean_s)
