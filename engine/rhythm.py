"""When to plan the next step, if the one before is still running: as late as the device allows.

A request that arrives while step N runs joins step N + 1 if that is not planned yet. Planned as soon as
possible, it would always be: every request would wait for a step that does nothing for it.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Rhythm"]

_WEIGHT: Final = 0.2
_MARGIN_S: Final = 0.0015
"""For what is not foreseen; a device that waits costs more than a request that does."""
_MARGIN: Final = 1.4
"""As a multiple of the time that planning and preparing usually take."""
_FORGET: Final = 0.05
"""How fast a long preparation is forgotten: the next may be as long again."""


class Rhythm:
    """Learns how long steps take on the device, and the host until the device can begin one."""

    def __init__(self) -> None:
        self._host = 0.01
        self._decode = 0.0
        self._per_token = 0.0
        self._began = -math.inf
        """When the step in flight began on the device."""
        self._prompt_tokens = 0
        """Of the step in flight, and of the one enqueued behind it."""
        self._next_tokens = 0

    def prepared(self, prompt_tokens: int, host_s: float) -> None:
        """A step with so many prompt tokens was planned and prepared, which took the host so long."""
        self._next_tokens = prompt_tokens
        self._host = max(host_s, self._host + _FORGET * (host_s - self._host))

    def completed(self, now: float, *, more: bool) -> None:
        """The step in flight is done; `more`: the next one is enqueued and begins now."""
        if self._began > -math.inf:
            self._learn(now - self._began)
        self._began = now if more else -math.inf
        self._prompt_tokens = self._next_tokens

    def plan_at(self) -> float:
        """The latest moment to begin planning; in the past where nothing is known."""
        if self._decode == 0.0:
            return -math.inf
        ends = self._began + self._decode + self._per_token * self._prompt_tokens
        return ends - self._host * _MARGIN - _MARGIN_S

    def _learn(self, seconds: float) -> None:
        # Whatever else is in a step, one of decodes alone takes no longer.
        if self._prompt_tokens == 0 or seconds < self._decode:
            weight = 1.0 if seconds < self._decode or self._decode == 0.0 else _WEIGHT
            self._decode += weight * (seconds - self._decode)
        elif self._decode > 0.0:
            per_token = (seconds - self._decode) / self._prompt_tokens
            weight = 1.0 if per_token < self._per_token else _WEIGHT
            self._per_token += weight * (per_token - self._per_token)
