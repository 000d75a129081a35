"""A rate with exponential decay."""

from __future__ import annotations

import math
from typing import Final

_MEMORY_S: Final = 15.0
"""Time constant: several answers, so that workers do not change roles with every burst."""
_LEAST_S: Final = 1.0
"""Shortest interval of a rate; otherwise the first request would make it infinite."""


class DecayingRate:
    """Sums amounts with exponential decay; times must not decrease."""

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
        """Amount per second; 0 if nothing was ever added."""
        if self._first_at is None:
            return 0.0
        window = -_MEMORY_S * math.expm1((self._first_at - now) / _MEMORY_S)
        return self._sum * math.exp((self._at - now) / _MEMORY_S) / max(window, _LEAST_S)
