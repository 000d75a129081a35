"""A rate over the recent past."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["DecayingRate"]

_MEMORY_S: Final = 15.0
"""Time constant: several answers long, so that workers do not change parts with every burst."""
_LEAST_S: Final = 1.0
"""A rate is taken over at least so long, or the first request would be an infinite one."""


class DecayingRate:
    """Adds up amounts, those of long ago fading; times must not decrease."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._at = 0.0
        self._first_at: float | None = None

    def add(self, amount: float, now: float) -> None:
        if self._first_at is None:
            self._first_at = self._at = now
        self._sum = self._sum * math.exp((self._at - now) / _MEMORY_S) + amount
        self._at = now

    def rate(self, now: float) -> float:
        """A second; 0 if nothing was added ever."""
        if self._first_at is None:
            return 0.0
        window = -_MEMORY_S * math.expm1((self._first_at - now) / _MEMORY_S)
        return self._sum * math.exp((self._at - now) / _MEMORY_S) / max(window, _LEAST_S)
