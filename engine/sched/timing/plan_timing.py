"""Decides when to plan the next step while one is running: as late as the device allows.

A request that arrives while step N runs can join step N + 1 only if that is not planned yet. If steps were
planned as early as possible, every request would wait for a step that it is not part of.
"""

from __future__ import annotations

import math
from typing import Final

from engine.sched.timing.line_fit import LineFit

_MARGIN_S: Final = 0.0003
"""An idle device delays all requests slightly; missing a step delays one request by a whole step."""
_FORGET: Final = 0.1
"""Decay rate of the largest preparation time and of the largest error."""
_MEMORY: Final = 0.9
"""Weight of a step relative to the next one."""
_DRY_S: Final = 0.0005
"""When the device ran dry, plan at least this much earlier; twice as much if it runs dry again."""


class PlanTiming:
    """Estimates how long a step takes on the device, and how long the host takes to plan and prepare one.

    The end of a step is known only if the host waited for it. If the step ended before the next was prepared,
    the device ran dry; the time until then is not the step's duration, and using it would delay planning
    further.
    """

    def __init__(self) -> None:
        self._length = LineFit(_MEMORY)
        self._host = {False: 0.01, True: 0.01}
        """Seconds to plan and prepare a step without prompts, and one with."""
        self._errors = {False: 0.0, True: 0.0}
        """How much earlier than expected a step ended, in seconds: one without prompts, and one with."""
        self._began = -math.inf
        """When the step in flight began on the device."""
        self._cost = 0.0
        """Cost of the prompts in the step in flight; `_next_cost`: in the step enqueued after it."""
        self._next_cost = 0.0
        self._next_ready = -math.inf
        """When the enqueued step was ready to begin."""

    def prepared(self, prompt_cost: float, host_s: float, now: float, *, dry: bool) -> None:
        """A step with prompts of this cost was planned and prepared, in `host_s` seconds of host time.

        `dry`: the step in flight had ended by then.
        """
        self._next_cost, self._next_ready = prompt_cost, now
        prompts = prompt_cost > 0
        host = self._host[prompts]
        in_time = now - host_s <= self.plan_at(prompts) + _MARGIN_S
        if dry and in_time and host_s <= host + _MARGIN_S:  # the host was on time: the step was short
            longest = self._length.at(self._cost)
            self._error = min(self._error + max(self._error, _DRY_S), longest)
        self._host[prompts] = max(host_s, host + _FORGET * (host_s - host))

    def completed(self, now: float, *, waited: bool, more: bool) -> None:
        """The step in flight ended. `waited`: it ended now, not earlier; `more`: the next one has begun."""
        if waited and self._began > -math.inf:
            self._error = max(self._ends() - now, self._error * (1 - _FORGET))
            self._length.observe(self._cost, now - self._began)
        began = now if waited else self._next_ready
        self._began = began if more else -math.inf
        self._cost = self._next_cost

    def plan_at(self, prompts: bool) -> float:
        """The latest time to begin planning a step; in the past if nothing was measured.

        `prompts`: whether it would compute prompts, which take the host longer to prepare.
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
