"""Measures how many prompt tokens per second the engine computes."""

from __future__ import annotations

import math
from typing import Final

_WEIGHT: Final = 0.1
"""Weight of the newest step in the running mean, which covers about the last ten."""


class PrefillRate:
    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    @property
    def tokens_a_second(self) -> float:
        """Infinite until a step was measured, so that no deadline is refused before."""
        return self._tokens / self._seconds if self._seconds else math.inf

    def observe(self, tokens: int, seconds: float) -> None:
        """A step completed `seconds` after the one before it, computed this many prompt tokens, and left
        others.

        Steps with room for more tokens are not counted: they do not show the achievable rate. Nor do steps
        without any, whose prompts waited for something else: a rate of zero would be no rate.
        """
        if tokens <= 0 or seconds <= 0:
            return
        self._tokens += _WEIGHT * (tokens - self._tokens) if self._seconds else tokens
        self._seconds += _WEIGHT * (seconds - self._seconds) if self._seconds else seconds
