"""When to plan the next step, if the one before is still running: as late as the device allows.

A request that arrives while step N runs joins step N + 1 if that is not planned yet. Planned as soon as
possible, it would always be: every request would wait for a step that does nothing for it.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["StepTiming"]

_MARGIN_S: Final = 0.0003
"""A device that waits costs everybody a little; a step missed costs one request a whole step."""
_FORGET: Final = 0.1
"""How fast a long preparation, or an error, is forgotten: the next may be as large again."""
_MEMORY: Final = 0.9
"""What a step counts for, compared with the one after it."""
_DRY_S: Final = 0.0005
"""How much earlier to plan, at least, when the device ran dry; if it does again, twice as much."""


class StepTiming:
    """Learns how long steps take on the device, and the host until the device can begin one.

    When a step ended is known only if the host waited for it. If it had ended before the next was prepared,
    the device ran dry: to take that time for the step's length would let the next be planned later still.
    """

    def __init__(self) -> None:
        self._length = _Line()
        self._host = {False: 0.01, True: 0.01}
        """To plan and prepare a step without prompts, and one with."""
        self._errors = {False: 0.0, True: 0.0}
        """By how much a step was over before it was expected to be: one without prompts, and one with."""
        self._began = -math.inf
        """When the step in flight began on the device."""
        self._cost = 0.0
        """Of prompts in the step in flight, and in the one enqueued behind it."""
        self._next_cost = 0.0
        self._next_ready = -math.inf
        """When the device could have begun that one."""

    def prepared(self, prompt_cost: float, host_s: float, now: float, *, dry: bool) -> None:
        """A step whose prompts cost so much was planned and prepared, which took the host so long.

        `dry`: the one in flight was done by then.
        """
        self._next_cost, self._next_ready = prompt_cost, now
        prompts = prompt_cost > 0
        host = self._host[prompts]
        in_time = now - host_s <= self.plan_at(prompts) + _MARGIN_S
        if dry and in_time and host_s <= host + _MARGIN_S:  # the host was as expected: the step was short
            longest = self._length.at(self._cost)
            self._error = min(self._error + max(self._error, _DRY_S), longest)
        self._host[prompts] = max(host_s, host + _FORGET * (host_s - host))

    def completed(self, now: float, *, waited: bool, more: bool) -> None:
        """The step in flight is done. `waited`: it ended now, not earlier; `more`: the next one has begun."""
        if waited and self._began > -math.inf:
            self._error = max(self._ends() - now, self._error * (1 - _FORGET))
            self._length.observe(self._cost, now - self._began)
        began = now if waited else self._next_ready
        self._began = began if more else -math.inf
        self._cost = self._next_cost

    def plan_at(self, prompts: bool) -> float:
        """The latest moment to begin planning a step; in the past where nothing is known.

        `prompts`: there are some that it would take along, which the host takes longer to prepare.
        """
        return self._ends() - self._error - self._host[prompts] - _MARGIN_S

    @property
    def _error(self) -> float:
        return self._errors[self._cost > 0]

    @_error.setter
    def _error(self, seconds: float) -> None:
        self._errors[self._cost > 0] = seconds

    def _ends(self) -> float:
        return self._began + self._length.at(self._cost)


class _Line:
    """y = a + b * x, b >= 0, through what was observed, by least squares; what is old counts little."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, x: float, y: float) -> None:
        self._n = _MEMORY * self._n + 1.0
        self._x = _MEMORY * self._x + x
        self._y = _MEMORY * self._y + y
        self._xx = _MEMORY * self._xx + x * x
        self._xy = _MEMORY * self._xy + x * y

    def at(self, x: float) -> float:
        """0 where nothing was observed."""
        if not self._n:
            return 0.0
        mean_x, mean_y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - mean_x * mean_x
        slope = (self._xy / self._n - mean_x * mean_y) / spread if spread > 1.0 else 0.0
        return max(0.0, mean_y + max(0.0, slope) * (x - mean_x))
