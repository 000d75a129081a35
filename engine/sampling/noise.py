"""Randomness without state: noise is a function of a seed, a position and a token.

A token is drawn by adding Gumbel noise to every log-probability and taking the largest sum (the Gumbel-max
trick). Unlike a draw by inverse distribution function, where one rounding error moves the borders of every
token behind it, a sum near another one is all that rounding can decide: a seeded answer survives a change of
batch, chunk or worker as well as a greedy one does.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["gumbel", "keys"]

Array: TypeAlias = npt.NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


def keys(seeds: npt.ArrayLike, positions: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """A key for the noise of each pair of seed and absolute token position.

    Both arguments are `[S]` unsigned 64-bit integers; the result is `[S, 2]`.
    """
    seed = np.asarray(seeds, dtype=np.uint64)
    position = np.asarray(positions, dtype=np.uint64)
    # The seed is mixed before the position is added: neighbouring seeds must not share a sequence.
    bits = _mix64(_mix64(seed) + (position + np.uint64(1)) * _GOLDEN)
    return np.ascontiguousarray(bits).view(np.int32).reshape(-1, 2)


def gumbel(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise for `tokens` `[S, n]` or `[n]` under `keys` `[S, 2]`; `[S, n]` float32.

    Both are int32, on one device. The same number comes out whatever else is asked along.
    """
    first, second = keys[:, :1], keys[:, 1:]
    bits = _mix32(_mix32(tokens ^ first) + second)
    # In float64: near 1, where the noise is large and decides, float32 has too few numbers.
    uniform = bits.double().add_(2.0**31 + 0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_().float()


def _mix64(x: Array) -> Array:
    """The finalizer of SplitMix64: a bijection in which every output bit depends on every input bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix32(x: torch.Tensor) -> torch.Tensor:
    """The same for 32 bits: the "lowbias32" constants of C. Wellons' hash prospector."""
    x = (x ^ _shifted(x, 16)) * 0x7FEB352D
    x = (x ^ _shifted(x, 15)) * _signed(0x846CA68B)
    return x ^ _shifted(x, 16)


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """`x >> bits` with zeros coming in, for a signed tensor."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _signed(x: int) -> int:
    return x - (1 << 32)
