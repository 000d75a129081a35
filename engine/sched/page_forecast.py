"""How many pages the running requests will still want at once.

To admit too many is to preempt some later and compute their prompts again; to admit too few leaves memory
idle. Requests grow together, but each gives all its pages back when it ends: what matters is the peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.core.request import Request

__all__ = ["OutputLengths", "allowed_tokens", "peak_growth"]

_FIRST_GUESS: Final = 256.0
_WEIGHT: Final = 0.02
"""Of the newest answer in the running mean: about the last hundred count."""


class OutputLengths:
    """Guesses how much longer an answer will get, from how long those were that ended."""

    def __init__(self) -> None:
        self._mean = _FIRST_GUESS

    def ended(self, request: Request) -> None:
        self._mean += _WEIGHT * (len(request.output) - self._mean)

    def remaining(self, requests: Sequence[Request]) -> NDArray[np.int64]:
        """Tokens still to come; all that are allowed if only their number can end the answer. O(requests)."""
        samplings = [request.sampling for request in requests]
        produced = _produced(requests)
        most = np.array([sampling.max_tokens for sampling in samplings], dtype=np.int64)
        left = np.maximum(most - produced, 0)
        # One that is longer than most already may end with any token, or go on for as long again.
        guess = np.minimum(left, np.maximum(int(self._mean) - produced, produced // 2))
        certain = [s.ignore_eos and not s.stop_token_ids for s in samplings]
        tokens: NDArray[np.int64] = np.where(certain, left, guess)
        return tokens


def allowed_tokens(requests: Sequence[Request]) -> NDArray[np.int64]:
    """Output tokens that each may still have."""
    most = np.array([request.sampling.max_tokens for request in requests], dtype=np.int64)
    allowed: NDArray[np.int64] = np.maximum(most - _produced(requests), 0)
    return allowed


def _produced(requests: Sequence[Request]) -> NDArray[np.int64]:
    return np.array([len(request.output) for request in requests], dtype=np.int64)


def peak_growth(held: NDArray[np.int64], growth: NDArray[np.int64]) -> int:
    """Pages that requests need beyond what they hold, at the worst moment until all have ended.

    Request i holds `held[i]` pages and will take `growth[i]` more at a common pace, one of each request at a
    time, and then give back all of them. O(n log n).
    """
    if len(growth) == 0:
        return 0
    order = np.argsort(growth, kind="stable")
    more, pages = growth[order], held[order]
    # When the k-th to end is about to, it and all after it have grown as much, and those before it are gone.
    alive = len(more) - np.arange(len(more))
    given_back = np.cumsum(pages) - pages
    return max(0, int((alive * more - given_back).max()))
