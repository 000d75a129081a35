"""The time of a step as a line over its cost, fitted to recent steps."""

from __future__ import annotations

from typing import Final

_NARROW: Final = 0.1
"""Standard deviation, relative to the mean, below which costs of steps are too alike to fit a slope."""


class LineFit:
    """A least-squares fit of y = a + b * x, b >= 0, with exponentially decaying weights."""

    def __init__(self, memory: float) -> None:
        """`memory`: weight of an observation relative to the next one."""
        self._memory = memory
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, x: float, y: float) -> None:
        self._n = self._memory * self._n + 1.0
        self._x = self._memory * self._x + x
        self._y = self._memory * self._y + y
        self._xx = self._memory * self._xx + x * x
        self._xy = self._memory * self._xy + x * y

    def at(self, x: float) -> float:
        """The fitted y; 0 if nothing was observed.

        Where all observations have about one x, a smaller x has its share of y: the steps say nothing about
        others, and a decode step after prompts of one size does not take as long as they do.
        """
        if not self._n:
            return 0.0
        mean_x, mean_y = self._x / self._n, self._y / self._n
        slope = self._slope()
        if slope is None:
            return mean_y * min(x / mean_x, 1.0) if mean_x > 1.0 else mean_y
        return max(0.0, mean_y + slope * (x - mean_x))

    @property
    def slope(self) -> float:
        """b; 0 where the observations do not tell."""
        return self._slope() or 0.0

    def _slope(self) -> float | None:
        """None: all observations have about one x."""
        if not self._n:
            return None
        mean_x, mean_y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - mean_x * mean_x
        if spread <= max(1.0, (_NARROW * mean_x) ** 2):
            return None
        return max(0.0, (self._xy / self._n - mean_x * mean_y) / spread)
