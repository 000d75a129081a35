"""How many prompt tokens a second the engine computes, as measured; plain arithmetic."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["PrefillRate"]

_WEIGHT: Final = 0.1
"""Of the newest step: the last ten or so count."""
_LEAST_TOKENS: Final = 64
"""A step with fewer says little about what it could have computed."""


class PrefillRate:
    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    @property
    def tokens_a_second(self) -> float:
        """Infinite until a step was measured: then nothing is known to be too slow."""
        return self._tokens / self._seconds if self._seconds else math.inf

    def observe(self, tokens: int, seconds: float) -> None:
        """A step that came `seconds` after the one before computed so many prompt tokens."""
        if tokens < _LEAST_TOKENS or seconds <= 0:
            return
        self._tokens += _WEIGHT * (tokens - self._tokens) if self._seconds else tokens
        self._seconds += _WEIGHT * (seconds - self._seconds) if self._seconds else seconds
