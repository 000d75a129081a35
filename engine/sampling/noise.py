"""Stateless randomness: noise is a function of a seed, a position and a token.

A token is drawn by adding Gumbel noise to every log-probability and taking the largest sum (the Gumbel-max
trick). In inverse transform sampling, one rounding error moves the borders of all later tokens. Here,
rounding matters only if two sums are nearly equal, so a seeded answer is as reproducible across batches,
chunks and workers as a greedy one.

All arithmetic is in 32 bits, and the GPU kernels (`engine.kernels.sampling.tiles`) compute the same noise up
to the rounding of two logarithms.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

_UInts: TypeAlias = npt.NDArray[np.uint32]
_Floats: TypeAlias = npt.NDArray[np.float32]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint32(1 << 31)
_UNIT: Final = np.float32(2.0**-32)


def keys(seeds: npt.ArrayLike, positions: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """A key for the noise of each pair of seed and absolute token position.

    Both arguments are `[S]` unsigned 64-bit integers; the result is `[S, 2]`.
    """
    seed = np.asarray(seeds, dtype=np.uint64)
    position = np.asarray(positions, dtype=np.uint64)
    # The seed is mixed before the position is added, so that neighbouring seeds do not share a sequence.
    bits = _mix64(_mix64(seed) + (position + np.uint64(1)) * _GOLDEN)
    return np.ascontiguousarray(bits).view(np.int32).reshape(-1, 2)


def hashed(keys: npt.NDArray[np.int32], tokens: npt.NDArray[Any]) -> _UInts:
    """32 random bits for `tokens` `[S, n]` or `[n]` under `keys` `[S, 2]`: `[S, n]`.

    With its top bit flipped, a number b stands for u = (b + 1/2) / 2^32, uniform between 0 and 1.
    """
    key = keys.view(np.uint32)
    bits = np.bitwise_xor(tokens.astype(np.uint32, copy=False), key[:, :1])
    spare = np.empty_like(bits)
    _mix32(bits, spare)
    np.add(bits, key[:, 1:], out=bits)
    _mix32(bits, spare)
    return bits


def exponential_bound(bits: _UInts) -> _Floats:
    """1 - u, up to rounding, in units of 2^-32: a lower bound of `exponential` without a logarithm."""
    return np.bitwise_xor(bits, ~_HALF).astype(np.float32)


def exponential(bits: _UInts) -> _Floats:
    """-log(u), float32: exponentially distributed, accurate also where u is near 1."""
    low = bits >= _HALF
    # Near 1, where the noise is largest, float32 is too coarse for u, but not for 1 - u.
    small = ((bits ^ np.where(low, _HALF, ~_HALF)).astype(np.float32) + np.float32(0.5)) * _UNIT
    result: _Floats = np.where(low, -np.log(small), -np.log1p(-small))
    return result


def gumbel(bits: _UInts) -> _Floats:
    """Standard Gumbel noise, -log(-log(u)), float32."""
    return -np.log(exponential(bits))


def _mix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64: a bijection in which every output bit depends on every input bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix32(x: _UInts, spare: _UInts) -> None:
    """The same for 32 bits, in place: the "lowbias32" constants of C. Wellons' hash prospector."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        np.right_shift(x, np.uint32(shift), out=spare)
        np.bitwise_xor(x, spare, out=x)
        np.multiply(x, np.uint32(factor), out=x)
    np.right_shift(x, np.uint32(16), out=spare)
    np.bitwise_xor(x, spare, out=x)
