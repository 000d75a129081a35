"""What the sampling kernels share: a row's parameters, its edited logits, noise, and fixed-point deficits.

A row of logits is read by several thread blocks ("splits"), SPLIT columns each. How a row is divided depends on
nothing but the vocabulary, and partial results are combined in a fixed order or as integers, so that a row's
token does not depend on the batch. `engine.drawing` says the same in numpy, with the same rounding.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

__all__ = [
    "BIAS_SHIFT",
    "COUNT_SHIFT",
    "DRAWN",
    "EARLY",
    "EDITED",
    "FLOATS",
    "INTS",
    "ITERATIONS",
    "LANES",
    "MARK_END",
    "MARK_PROMPT",
    "MAX_BIASES",
    "MEASURED",
    "NUM_FLOATS",
    "NUM_INTS",
    "ONE_COUNT",
    "RECORDED",
    "SPLIT",
    "STATS",
    "TRUNCATED",
    "WIDE",
]

LANES: Final = tl.constexpr(256)
"""Groups of adjacent columns that a block loads at once; one thread has one."""
WIDE: Final = tl.constexpr(8)
"""Columns of a group: 16 bytes in bfloat16."""
ITERATIONS: Final = tl.constexpr(4)
SPLIT: Final = tl.constexpr(256 * 8 * 4)

# Flags of a row.
DRAWN: Final = tl.constexpr(1)
"""A token is drawn; otherwise the likeliest is taken."""
EDITED: Final = tl.constexpr(2)
"""Logits are changed by penalties, biases or forbidden ends."""
EARLY: Final = tl.constexpr(4)
"""Ends are forbidden."""
TRUNCATED: Final = tl.constexpr(8)
RECORDED: Final = tl.constexpr(16)
"""The token is counted for penalties."""
MEASURED: Final = tl.constexpr(32)
"""Log-probabilities are reported."""

# Columns of a slot's parameters.
NUM_FLOATS: Final = tl.constexpr(8)
FLOATS: Final = ("inverse_temperature", "top_p", "repetition", "presence", "frequency")
NUM_INTS: Final = tl.constexpr(4)
INTS: Final = ("top_k", "min_p_limit", "num_top")

# A mark: what is special about a token for a slot's request.
MARK_PROMPT: Final = tl.constexpr(1)
MARK_END: Final = tl.constexpr(2)
BIAS_SHIFT: Final = tl.constexpr(2)
"""Index in the slot's biases; 0: none."""
MAX_BIASES: Final = tl.constexpr(2048)
COUNT_SHIFT: Final = tl.constexpr(13)
"""How often the token is in the output."""
ONE_COUNT: Final = tl.constexpr(1 << 13)

STATS: Final = tl.constexpr(8)
"""What a split leaves of each row: best score, highest and lowest edited logit, highest logit and the sum of
exp(logit - highest), and whether any logit is not finite."""

_STEPS: Final = tl.constexpr(float(1 << 20))
_STEP: Final = tl.constexpr(1.0 / (1 << 20))
_LARGEST: Final = tl.constexpr(32.0 - 1.0 / (1 << 18))


@triton.jit  # type: ignore[untyped-decorator]
def columns_of(split, i):  # type: ignore[no-untyped-def]
    """[LANES, WIDE]: columns of a split's i-th tile."""
    lane = tl.arange(0, LANES)[:, None] * WIDE
    return split * SPLIT + i * (LANES * WIDE) + lane + tl.arange(0, WIDE)[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def open_row(logits_ptr, stride, tables, row):  # type: ignore[no-untyped-def]
    """What the functions here take for a row: its logits, slot, flags and temperature, and the tables."""
    rows_ptr, floats_ptr, ints_ptr, marks_ptr, bitmap_ptr, biases_ptr = tables
    slot = tl.load(rows_ptr + row * 4).to(tl.int64)
    flags = tl.load(rows_ptr + row * 4 + 3)
    inverse_temperature = tl.load(floats_ptr + slot * NUM_FLOATS)
    return (
        logits_ptr + row * stride,
        slot,
        flags,
        inverse_temperature,
        floats_ptr + slot * NUM_FLOATS,
        marks_ptr,
        bitmap_ptr,
        biases_ptr,
    )


@triton.jit  # type: ignore[untyped-decorator]
def flags_of(tables, row):  # type: ignore[no-untyped-def]
    return tl.load(tables[0] + row * 4 + 3)


@triton.jit  # type: ignore[untyped-decorator]
def key_of(tables, row):  # type: ignore[no-untyped-def]
    return tl.load(tables[0] + row * 4 + 1), tl.load(tables[0] + row * 4 + 2)


@triton.jit  # type: ignore[untyped-decorator]
def cuts_of(tables, row):  # type: ignore[no-untyped-def]
    """top_k, 0 if it is off; top_p; and the deficit at which min-p cuts."""
    slot = tl.load(tables[0] + row * 4).to(tl.int64)
    top_p = tl.load(tables[1] + slot * NUM_FLOATS + 1)
    ints = tables[2] + slot * NUM_INTS
    return tl.load(ints), top_p, tl.load(ints + 1)


@triton.jit  # type: ignore[untyped-decorator]
def edited(raw, column, inside, source, vocab: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits after biases, penalties and forbidden ends. Only marked tokens' marks are loaded."""
    _, slot, flags, _, floats_ptr, marks_ptr, bitmap_ptr, biases_ptr = source
    words: tl.constexpr = (vocab + 31) // 32
    word = tl.load(bitmap_ptr + slot * words + (column >> 5), mask=inside, other=0)
    marked = inside & (((word >> (column & 31)) & 1) != 0)
    mark = tl.load(marks_ptr + slot * vocab + column, mask=marked, other=0)
    index = (mark >> BIAS_SHIFT) & (MAX_BIASES - 1)
    bias = tl.load(biases_ptr + slot * MAX_BIASES + index, mask=index > 0, other=0.0)
    said = (mark >> COUNT_SHIFT).to(tl.float32)
    repetition = tl.load(floats_ptr + 2)
    presence = tl.load(floats_ptr + 3)
    frequency = tl.load(floats_ptr + 4)
    value = raw + bias
    seen = ((mark & MARK_PROMPT) != 0) | (said > 0)
    repeated = tl.where(value > 0, tl.div_rn(value, tl.zeros_like(value) + repetition), value * repetition)
    value = tl.where(seen, repeated, value)
    value = value - frequency * said
    value = value - tl.where(said > 0, presence, 0.0)
    forbidden = ((mark & MARK_END) != 0) & ((flags & EARLY) != 0)
    return tl.where(forbidden, -float("inf"), value)


@triton.jit  # type: ignore[untyped-decorator]
def load_edited(source, column, vocab: tl.constexpr):  # type: ignore[no-untyped-def]
    """Edited logits; -inf outside the vocabulary."""
    inside = column < vocab
    value = tl.load(source[0] + column, mask=inside, other=-float("inf")).to(tl.float32)
    if (source[2] & EDITED) != 0:
        value = edited(value, column, inside, source, vocab)
    return value


@triton.jit  # type: ignore[untyped-decorator]
def highest_of(stats_ptr, row, splits: tl.constexpr, padded: tl.constexpr):  # type: ignore[no-untyped-def]
    """A row's highest edited logit."""
    split = tl.arange(0, padded)
    at = stats_ptr + (row * splits + split) * STATS
    return tl.max(tl.load(at + 1, mask=split < splits, other=-float("inf")), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def picked(  # type: ignore[no-untyped-def]
    scores_ptr, picks_ptr, row, stride: tl.constexpr, splits: tl.constexpr, padded: tl.constexpr
):
    """The token with the best score of all splits; of equals, the first."""
    split = tl.arange(0, padded)
    exists = split < splits
    score = tl.load(scores_ptr + (row * splits + split) * stride, mask=exists, other=-float("inf"))
    token = tl.load(picks_ptr + row * splits + split, mask=exists, other=2147483647)
    return tl.min(tl.where(score == tl.max(score, axis=0), token, 2147483647), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def deficit(value, highest, inverse_temperature):  # type: ignore[no-untyped-def]
    """How far scaled logits lie below the highest, int32 in steps of 2^-20; all from 32 on is one class."""
    below = (highest - value) * inverse_temperature
    return (tl.minimum(below, _LARGEST) * _STEPS).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def mass_of(deficits):  # type: ignore[no-untyped-def]
    """exp(-deficit): probability relative to the likeliest token's."""
    return tl.exp(deficits.to(tl.float32) * -_STEP)


@triton.jit  # type: ignore[untyped-decorator]
def _mix32(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit  # type: ignore[untyped-decorator]
def gumbel(column, first, second):  # type: ignore[no-untyped-def]
    """`engine.random.gumbel`: noise of tokens under the key of two words."""
    bits = _mix32(_mix32(column.to(tl.uint32) ^ first.to(tl.uint32)) + second.to(tl.uint32))
    # With the top bit flipped they are u = (bits + 1/2) / 2^32. Near 1, where the noise is large and decides,
    # float32 has too few numbers for u, but not for 1 - u.
    low = bits >= 0x80000000
    small = bits ^ tl.where(low, 0x80000000, 0x7FFFFFFF).to(tl.uint32)
    small = (small.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    rest = 1.0 - small
    logarithm = -tl.log(tl.where(low, small, rest))
    gap = 1.0 - rest
    exact = tl.where(gap > 0, small * (logarithm / tl.where(gap > 0, gap, 1.0)), small)
    return -tl.log(tl.where(low, logarithm, exact))
