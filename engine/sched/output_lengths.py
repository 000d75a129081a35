"""How many tokens running answers will still produce: expected ones, and allowed ones."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, not_
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.core.request import Request

_FIRST_GUESS: Final = 256.0
_WEIGHT: Final = 0.02
"""Weight of the newest answer in the running mean, which covers about the last hundred."""


class OutputLengths:
    """Estimates the remaining length of an answer from the lengths of answers that ended."""

    def __init__(self) -> None:
        self._mean = _FIRST_GUESS

    def ended(self, request: Request) -> None:
        self._mean += _WEIGHT * (len(request.output) - self._mean)

    def remaining(self, requests: Sequence[Request]) -> NDArray[np.int64]:
        """Expected remaining tokens; all allowed ones if only the limit can end the answer. O(requests)."""
        return self.remaining_after(produced_tokens(requests), requests)

    def remaining_after(self, produced: NDArray[np.int64], requests: Sequence[Request]) -> NDArray[np.int64]:
        """The same, given `produced_tokens(requests)`."""
        left = np.maximum(_most(requests) - produced, 0)
        # An answer that is already longer than most is expected to go on for as long again.
        guess: NDArray[np.int64] = np.minimum(left, np.maximum(int(self._mean) - produced, produced // 2))
        goes_on = np.fromiter(map(_IGNORE_EOS, requests), np.bool_, len(requests))
        if not goes_on.any():
            return guess
        certain = goes_on & np.fromiter(map(not_, map(_STOP_TOKENS, requests)), np.bool_, len(requests))
        tokens: NDArray[np.int64] = np.where(certain, left, guess)
        return tokens


def allowed_tokens(requests: Sequence[Request]) -> NDArray[np.int64]:
    """Output tokens that each request may still produce."""
    allowed: NDArray[np.int64] = np.maximum(_most(requests) - produced_tokens(requests), 0)
    return allowed


# Attributes are read by C code, since this is a third of an admission's cost with 512 running requests.
_OUTPUT: Final = attrgetter("output")
_MAX_TOKENS: Final = attrgetter("sampling.max_tokens")
_IGNORE_EOS: Final = attrgetter("sampling.ignore_eos")
_STOP_TOKENS: Final = attrgetter("sampling.stop_token_ids")


def produced_tokens(requests: Sequence[Request]) -> NDArray[np.int64]:
    """Output tokens of each request so far."""
    return np.fromiter(map(len, map(_OUTPUT, requests)), np.int64, len(requests))


def _most(requests: Sequence[Request]) -> NDArray[np.int64]:
    return np.fromiter(map(_MAX_TOKENS, requests), np.int64, len(requests))
