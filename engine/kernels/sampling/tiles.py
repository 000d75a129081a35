"""Functions shared by the sampling kernels: a row's parameters, edited logits, noise, fixed-point deficits.

A row of logits is read by several thread blocks ("splits") of SPLIT columns each. The division depends only
on the vocabulary, and partial results are combined in a fixed order or as integers, so a row's token does not
depend on the batch. `engine.sampling.gumbel_sample` computes the same in numpy, with the same rounding.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

TILES: Final = tl.constexpr(2)
LANES: Final = tl.constexpr(256)
WIDE: Final = tl.constexpr(8)
"""A split is [TILES, LANES, WIDE]: each thread has one lane, and loads 16 bytes (bfloat16) of each tile."""
SPLIT: Final = tl.constexpr(2 * 256 * 8)

# Flags of a row.
RANDOM: Final = tl.constexpr(1)
"""A token is drawn; otherwise the most likely is taken."""
EDITED: Final = tl.constexpr(2)
"""Logits are changed by penalties, biases or forbidden ends."""
BELOW_MIN_TOKENS: Final = tl.constexpr(4)
"""Ends are forbidden."""
TRUNCATED: Final = tl.constexpr(8)
RECORDED: Final = tl.constexpr(16)
"""The token is counted for penalties."""
MEASURED: Final = tl.constexpr(32)
"""Log-probabilities are reported."""
MASKED: Final = tl.constexpr(64)
"""A grammar allows some tokens only."""

# Columns of a slot's parameters.
NUM_FLOATS: Final = tl.constexpr(8)
FLOATS: Final = ("inverse_temperature", "top_p", "inverse_repetition", "repetition", "presence", "frequency")
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
"""Results of a split, per row: best score, highest and lowest edited logit, highest logit and the sum of
exp(logit - highest), and whether any logit is not finite."""

_STEPS: Final = tl.constexpr(float(1 << 19))
_STEP: Final = tl.constexpr(1.0 / (1 << 19))
_LARGEST: Final = tl.constexpr(32.0 - 1.0 / (1 << 18))
_LOG2_E: Final = tl.constexpr(1.4426950408889634)


@triton.jit
def columns_of(split):  # type: ignore[no-untyped-def]
    """[TILES, LANES, WIDE]: columns of a split."""
    tile = tl.arange(0, TILES)[:, None, None] * (LANES * WIDE)
    lane = tl.arange(0, LANES)[None, :, None] * WIDE
    return split * SPLIT + tile + lane + tl.arange(0, WIDE)[None, None, :]


@triton.jit
def lanes_max(x):  # type: ignore[no-untyped-def]
    """Maximum per lane: [TILES, LANES, WIDE] -> [LANES], within a thread."""
    return tl.max(tl.max(x, axis=2), axis=0)


@triton.jit
def lanes_min(x):  # type: ignore[no-untyped-def]
    return tl.min(tl.min(x, axis=2), axis=0)


@triton.jit
def lanes_sum(x):  # type: ignore[no-untyped-def]
    return tl.sum(tl.sum(x, axis=2), axis=0)


@triton.jit
def share_of(raw, highest):  # type: ignore[no-untyped-def]
    """The highest logit of a split, and the sum of exp(logit - highest). `highest`: of each lane."""
    top = tl.max(highest, axis=0)
    return top, tl.sum(lanes_sum(tl.exp(raw - top)), axis=0)


@triton.jit
def total_of(highest, shares):  # type: ignore[no-untyped-def]
    """The logarithm of the sum of exp(logit) of all splits."""
    top = tl.max(highest, axis=0)
    return top + tl.log(tl.sum(tl.where(shares > 0, shares * tl.exp(highest - top), 0.0), axis=0))


@triton.jit
def open_row(  # type: ignore[no-untyped-def]
    logits_ptr, stride, rows_ptr, floats_ptr, marks_ptr, bitmap_ptr, biases_ptr, row
):
    """Arguments of the functions here, for one row: its logits, slot, flags, temperature and tables."""
    slot = tl.load(rows_ptr + row * 4).to(tl.int64)
    flags = tl.load(rows_ptr + row * 4 + 3)
    floats_ptr += slot * NUM_FLOATS
    inverse_temperature = tl.load(floats_ptr)
    return (
        logits_ptr + row * stride,
        slot,
        flags,
        inverse_temperature,
        floats_ptr,
        marks_ptr,
        bitmap_ptr,
        biases_ptr,
    )


@triton.jit  # type: ignore[untyped-decorator]
def bitmap_of(bitmap_ptr, slot, vocab: tl.constexpr):  # type: ignore[no-untyped-def]
    """A slot's bitmap of marked tokens, followed by the bitmap of tokens that its grammar allows."""
    return bitmap_ptr + slot * (2 * ((vocab + 31) // 32))


@triton.jit  # type: ignore[untyped-decorator]
def _masked(value, column, inside, source, vocab: tl.constexpr):  # type: ignore[no-untyped-def]
    """-inf for tokens that the row's grammar does not allow."""
    allowed_ptr = bitmap_of(source[6], source[1], vocab) + (vocab + 31) // 32
    word = tl.load(allowed_ptr + (column >> 5), mask=inside, other=0)
    return tl.where(((word >> (column & 31)) & 1) != 0, value, -float("inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _edited(raw, column, marked, source, vocab: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits after biases, penalties and forbidden ends; only marked tokens are changed."""
    _, slot, flags, _, floats_ptr, marks_ptr, _, biases_ptr = source
    mark = tl.load(marks_ptr + slot * vocab + column, mask=marked, other=0)
    index = (mark >> BIAS_SHIFT) & (MAX_BIASES - 1)
    bias = tl.load(biases_ptr + slot * MAX_BIASES + index, mask=index > 0, other=0.0)
    said = (mark >> COUNT_SHIFT).to(tl.float32)
    inverse = tl.load(floats_ptr + 2)
    repetition = tl.load(floats_ptr + 3)
    presence = tl.load(floats_ptr + 4)
    frequency = tl.load(floats_ptr + 5)
    value = raw + bias
    seen = ((mark & MARK_PROMPT) != 0) | (said > 0)
    value = tl.where(seen, value * tl.where(value > 0, inverse, repetition), value)
    value = value - frequency * said
    value = value - tl.where(said > 0, presence, 0.0)
    forbidden = ((mark & MARK_END) != 0) & ((flags & BELOW_MIN_TOKENS) != 0)
    return tl.where(forbidden, -float("inf"), value)


@triton.jit  # type: ignore[untyped-decorator]
def edit_split(raw, split, source, vocab: tl.constexpr):  # type: ignore[no-untyped-def]
    """Edited logits of a split, from its logits.

    Few tokens are marked, so each lane edits its own one by one.
    """
    if (source[2] & EDITED) != 0:
        tile = tl.arange(0, TILES)[:, None]
        first = split * SPLIT + tile * (LANES * WIDE) + tl.arange(0, LANES)[None, :] * WIDE
        bitmap_ptr = bitmap_of(source[6], source[1], vocab)
        word = tl.load(bitmap_ptr + (first >> 5), mask=first < vocab, other=0)
        left = tl.sum(((word >> (first & 31)) & 0xFF) << (tile * WIDE), axis=0)
        column = columns_of(split)
        while any_of(left):
            own, marked, left = taken(split, left)
            marked = marked & (own < vocab)
            value = tl.load(source[0] + own, mask=marked, other=0.0).to(tl.float32)
            value = _edited(value, own, marked, source, vocab)
            raw = tl.where((column == own[None, :, None]) & marked[None, :, None], value[None, :, None], raw)
    if (source[2] & MASKED) != 0:
        every = columns_of(split)
        raw = _masked(raw, every, every < vocab, source, vocab)
    return raw


@triton.jit  # type: ignore[untyped-decorator]
def load_split(source, split, vocab: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits of a split; -inf outside the vocabulary."""
    column = columns_of(split)
    return tl.load(source[0] + column, mask=column < vocab, other=-float("inf")).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def load_edited(source, column, vocab: tl.constexpr):  # type: ignore[no-untyped-def]
    """Edited logits of some columns; -inf outside the vocabulary."""
    inside = column < vocab
    value = tl.load(source[0] + column, mask=inside, other=-float("inf")).to(tl.float32)
    if (source[2] & EDITED) != 0:
        word = tl.load(bitmap_of(source[6], source[1], vocab) + (column >> 5), mask=inside, other=0)
        value = _edited(value, column, inside & (((word >> (column & 31)) & 1) != 0), source, vocab)
    if (source[2] & MASKED) != 0:
        value = _masked(value, column, inside, source, vocab)
    return value


@triton.jit  # type: ignore[untyped-decorator]
def picked(  # type: ignore[no-untyped-def]
    scores_ptr, picks_ptr, row, stride: tl.constexpr, splits: tl.constexpr, padded: tl.constexpr
):
    """The token with the best score of all splits; ties to the first."""
    split = tl.arange(0, padded)
    exists = split < splits
    score = tl.load(scores_ptr + (row * splits + split) * stride, mask=exists, other=-float("inf"))
    token = tl.load(picks_ptr + row * splits + split, mask=exists, other=2147483647)
    return tl.min(tl.where(score == tl.max(score, axis=0), token, 2147483647), axis=0)


@triton.jit
def deficit(value, highest, inverse_temperature):  # type: ignore[no-untyped-def]
    """Difference of scaled logits to the highest, in steps of 2^-19; 32 and more is one class.

    Comparisons ignore the fraction, without a conversion: see `within`.
    """
    return tl.minimum((highest - value) * inverse_temperature, _LARGEST) * _STEPS


@triton.jit
def within(deficits, bound):  # type: ignore[no-untyped-def]
    """Whether deficits, as integers, are at most the integer `bound`. Both are exact in float32."""
    return deficits < (bound + 1).to(tl.float32)


@triton.jit
def mass_of(deficits):  # type: ignore[no-untyped-def]
    """exp(-deficit): probability relative to the most likely token's."""
    return tl.exp2(deficits * (-_STEP * _LOG2_E))


@triton.jit
def _mix32(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def hashed(column, key):  # type: ignore[no-untyped-def]
    """`engine.sampling.noise.hashed`: 32 random bits of tokens under a key of two words."""
    return _mix32(_mix32(column.to(tl.uint32) ^ key[0].to(tl.uint32)) + key[1].to(tl.uint32))


@triton.jit
def gumbel(bits):  # type: ignore[no-untyped-def]
    """`engine.sampling.noise.gumbel`: noise."""
    # Near u = 1, where the noise is largest, float32 is too coarse for u, but not for 1 - u.
    low = bits >= 0x80000000
    small = bits ^ tl.where(low, 0x80000000, 0x7FFFFFFF).to(tl.uint32)
    small = (small.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    rest = 1.0 - small
    logarithm = -tl.log(tl.where(low, small, rest))
    gap = 1.0 - rest
    exact = tl.where(gap > 0, small * (logarithm / tl.where(gap > 0, gap, 1.0)), small)
    return -tl.log(tl.where(low, logarithm, exact))


@triton.jit
def most_noise(bits):  # type: ignore[no-untyped-def]
    """An upper bound of `gumbel` without a logarithm; exceeds it by less than 4, mostly by less than 0.1.

    It follows from -log(u) >= 1 - u: a float's exponent and mantissa, read as one number, are at most its
    logarithm.
    """
    least = (bits ^ 0x7FFFFFFF).to(tl.float32) + 0.5
    as_number = least.to(tl.int32, bitcast=True).to(tl.float32)
    return as_number * (-1.0 / (1 << 23) / _LOG2_E) + (127.0 + 32.0) / _LOG2_E


@triton.jit
def key_of(rows_ptr, row):  # type: ignore[no-untyped-def]
    """A row's key for noise."""
    return tl.load(rows_ptr + row * 4 + 1), tl.load(rows_ptr + row * 4 + 2)


@triton.jit
def bits_of(mask):  # type: ignore[no-untyped-def]
    """Pack bools [TILES, LANES, WIDE] into an int32 per lane, for `taken`."""
    tile = tl.arange(0, TILES)[:, None, None] * WIDE
    return lanes_sum(mask.to(tl.int32) << (tile + tl.arange(0, WIDE)[None, None, :]))


@triton.jit
def taken(split, left):  # type: ignore[no-untyped-def]
    """Each lane's first column whose bit is in `left`, whether there is one, and the bits without it."""
    lowest = left & -left
    index = (lowest.to(tl.uint32, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    index = tl.where(left != 0, index, 0)
    lane = split * SPLIT + tl.arange(0, LANES) * WIDE
    return lane + (index // WIDE) * (LANES * WIDE) + index % WIDE, left != 0, left ^ lowest


@triton.jit
def any_of(left):  # type: ignore[no-untyped-def]
    return tl.max((left != 0).to(tl.int32), axis=0) != 0
