"""How many pages the running requests will still want at once.

To admit too many is to preempt some later and compute their prompts again; to admit too few leaves memory
idle. Requests grow together, but each gives all its pages back when it ends: what matters is the peak.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from engine.core.request import Request

__all__ = ["OutputLengths", "peak_growth"]

_FIRST_GUESS: Final = 256.0
_WEIGHT: Final = 0.02
"""Of the newest answer in the running mean: about the last hundred count."""


class OutputLengths:
    """Guesses how much longer an answer will get, from how long those were that ended."""

    def __init__(self) -> None:
        self._mean = _FIRST_GUESS

    def ended(self, request: Request) -> None:
        self._mean += _WEIGHT * (len(request.output) - self._mean)

    def remaining(self, request: Request) -> int:
        """Tokens still to come; all that are allowed if only their number can end the answer."""
        sampling = request.sampling
        left = max(0, sampling.max_tokens - len(request.output))
        if sampling.ignore_eos and not sampling.stop_token_ids:
            return left
        # One that is longer than most already may end with any token, or go on for as long again.
        return min(left, max(int(self._mean) - len(request.output), len(request.output) // 2))


def peak_growth(held: Iterable[int], growth: Iterable[int]) -> int:
    """Pages that requests need beyond what they hold, at the worst moment until all have ended.

    Request i holds `held[i]` pages and will take `growth[i]` more at a common pace, one of each request at a
    time, and then give back all of them. O(n log n).
    """
    pages = np.fromiter(held, dtype=np.int64)
    more = np.fromiter(growth, dtype=np.int64)
    if len(more) == 0:
        return 0
    order = np.argsort(more, kind="stable")
    more, pages = more[order], pages[order]
    # When the k-th to end is about to, it and all after it have grown as much, and those before it are gone.
    alive = len(more) - np.arange(len(more))
    given_back = np.cumsum(pages) - pages
    return max(0, int((alive * more - given_back).max()))
