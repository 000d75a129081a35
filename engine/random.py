"""Randomness without state: a uniform number is a function of a seed and a position."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["uniform"]

Array: TypeAlias = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(seeds: npt.ArrayLike, positions: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """One number in (0, 1] for each pair of seed and absolute token position.

    Never 0, so that a draw by inverse distribution function cannot pick a token of probability zero.
    Both arguments are unsigned 64-bit integers or arrays of one shape; the result has that shape.
    """
    seed = np.atleast_1d(np.asarray(seeds, dtype=np.uint64))
    position = np.atleast_1d(np.asarray(positions, dtype=np.uint64))
    # The seed is mixed before the position is added: neighbouring seeds must not share a sequence.
    bits = _mix(_mix(seed) + (position + np.uint64(1)) * _GOLDEN)
    return ((bits >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53


def _mix(x: Array) -> Array:
    """The finalizer of SplitMix64: a bijection in which every output bit depends on every input bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
