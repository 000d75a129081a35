"""Log-probabilities of chosen tokens and of the likeliest ones, from what the scan left.

The scan leaves the best token of every lane, which has LANE_TOKENS. At most n - 1 lanes have one that is better
than the n-th best of these, so the n likeliest are found among n * LANE_TOKENS tokens, listed in one more pass.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from engine.kernels.sampling_scan import rival_key
from engine.kernels.sampling_tiles import ITERATIONS, LANES, NUM_INTS, STATS, WIDE, columns_of

__all__ = ["LANE_TOKENS", "RIVALS", "rank", "report", "rivals"]

LANE_TOKENS: Final = WIDE.value * ITERATIONS.value
RIVALS: Final = tl.constexpr(1024)
"""Tokens that are listed of a row at most; the number of tokens asked for is at most a LANE_TOKENS-th."""
_NONE: Final = tl.constexpr(-(1 << 63))


@triton.jit  # type: ignore[untyped-decorator]
def _asked(tables, row):  # type: ignore[no-untyped-def]
    """How many of the likeliest tokens the row's request asks for."""
    slot = tl.load(tables[0] + row * 4).to(tl.int64)
    return tl.load(tables[2] + slot * NUM_INTS + 2)


@triton.jit  # type: ignore[untyped-decorator]
def rivals(  # type: ignore[no-untyped-def]
    tables, places_ptr, peaks_ptr, floors_ptr, found_ptr, splits: tl.constexpr, padded: tl.constexpr
):
    """Grid (measured rows,). The n-th best of a row's lanes, as a key, at `floors_ptr`."""
    row = tl.load(places_ptr + tl.program_id(0)).to(tl.int64)
    at = tl.arange(0, padded * LANES)
    keys = tl.load(peaks_ptr + row * splits * LANES + at, mask=at < splits * LANES, other=_NONE)
    floor = tl.full((), (1 << 63) - 1, dtype=tl.int64)
    asked = _asked(tables, row)
    while asked > 0:
        floor = tl.max(keys, axis=0)
        keys = tl.where(keys == floor, _NONE, keys)
        asked -= 1
    tl.store(floors_ptr + row, floor)
    tl.store(found_ptr + row, 0)


@triton.jit  # type: ignore[untyped-decorator]
def rank(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    places_ptr,
    tokens_ptr,
    floors_ptr,
    found_ptr,
    keys_ptr,
    ahead_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
):
    """Grid (splits, measured rows). Counts tokens likelier than the chosen one; lists those from the floor on."""
    split = tl.program_id(0)
    row = tl.load(places_ptr + tl.program_id(1)).to(tl.int64)
    logits_ptr += row * stride
    chosen = tl.load(logits_ptr + tl.load(tokens_ptr + row)).to(tl.float32)
    floor = tl.load(floors_ptr + row)
    ahead = tl.zeros((LANES,), dtype=tl.int32)
    for i in tl.range(ITERATIONS):
        column = columns_of(split, i)
        inside = column < vocab
        value = tl.load(logits_ptr + column, mask=inside, other=-float("inf")).to(tl.float32)
        ahead += tl.sum((value > chosen).to(tl.int32), axis=1)
        key = rival_key(value, column)
        wanted = (inside & (key >= floor)).to(tl.int32)
        each = tl.sum(wanted, axis=1)
        found = tl.sum(each, axis=0)
        if found > 0:
            # In any order: they are sorted later, and no two keys are equal.
            before = tl.atomic_add(found_ptr + row, found) + tl.cumsum(each, axis=0) - each
            index = before[:, None] + tl.cumsum(wanted, axis=1) - wanted
            tl.store(keys_ptr + row * RIVALS + index, key, mask=(wanted != 0) & (index < RIVALS))
    tl.store(ahead_ptr + row * splits + split, tl.sum(ahead, axis=0))


@triton.jit(do_not_specialize=["most"])  # type: ignore[untyped-decorator]
def report(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    tables,
    places_ptr,
    tokens_ptr,
    stats_ptr,
    found_ptr,
    keys_ptr,
    ahead_ptr,
    chosen_ptr,
    rank_ptr,
    top_ptr,
    ids_ptr,
    most,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
):
    """Grid (measured rows,). Log-probability and rank of the chosen token, and the likeliest, best first."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(places_ptr + place).to(tl.int64)
    split = tl.arange(0, padded)
    exists = split < splits
    at = stats_ptr + (row * splits + split) * STATS
    highest = tl.load(at + 3, mask=exists, other=-float("inf"))
    top = tl.max(highest, axis=0)
    shares = tl.load(at + 4, mask=exists, other=0.0)
    total = top + tl.log(tl.sum(tl.where(shares > 0, shares * tl.exp(highest - top), 0.0), axis=0))
    value = tl.load(logits_ptr + row * stride + tl.load(tokens_ptr + row)).to(tl.float32)
    tl.store(chosen_ptr + place, value - total)
    ahead = tl.load(ahead_ptr + row * splits + split, mask=exists, other=0)
    tl.store(rank_ptr + place, tl.sum(ahead, axis=0).to(tl.int64) + 1)
    index = tl.arange(0, RIVALS)
    keys = tl.load(keys_ptr + row * RIVALS + index, mask=index < tl.load(found_ptr + row), other=_NONE)
    asked = _asked(tables, row)
    n = asked * 0
    while n < asked:
        key = tl.max(keys, axis=0)
        keys = tl.where(keys == key, _NONE, keys)
        ordered = (key >> 32).to(tl.int32)
        bits = tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered)
        token = 0x7FFFFFFF - (key & 0x7FFFFFFF)
        tl.store(top_ptr + place * most + n, bits.to(tl.float32, bitcast=True) - total)
        tl.store(ids_ptr + place * most + n, tl.minimum(token, vocab - 1))
        n += 1
