"""Log-probabilities of the chosen and the most likely tokens, from the results of the scan.

The scan stores the best token of every lane of LANE_TOKENS tokens. At most n - 1 lanes have a better one than
the n-th best of these, so the n most likely tokens are among n * LANE_TOKENS, which one more pass lists.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from engine.kernels.sampling.scan import rival_key
from engine.kernels.sampling.tiles import (
    LANES,
    NUM_INTS,
    STATS,
    TILES,
    WIDE,
    any_of,
    bits_of,
    columns_of,
    lanes_sum,
    taken,
    total_of,
)

LANE_TOKENS: Final = WIDE.value * TILES.value
RIVALS: Final = tl.constexpr(512)
"""Most tokens that are listed per row; requests may ask for at most RIVALS / LANE_TOKENS tokens."""
_NONE: Final = tl.constexpr(-(1 << 63))


@triton.jit  # type: ignore[untyped-decorator]
def rivals(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    rows_ptr,
    ints_ptr,
    places_ptr,
    tokens_ptr,
    raw_peaks_ptr,
    floors_ptr,
    limits_ptr,
    found_ptr,
    splits: tl.constexpr,
    padded: tl.constexpr,
):
    """Grid (measured rows,).

    Finds the logits of the chosen token and of the n-th best lane, with its column.
    """
    row = tl.load(places_ptr + tl.program_id(0)).to(tl.int64)
    asked = _asked(rows_ptr, ints_ptr, row)
    at = tl.arange(0, padded * LANES)
    keys = tl.load(raw_peaks_ptr + row * splits * LANES + at, mask=at < splits * LANES, other=_NONE)
    floor = tl.full((), (1 << 63) - 1, dtype=tl.int64)
    while asked > 0:
        floor = tl.max(keys, axis=0)
        keys = tl.where(keys == floor, _NONE, keys)
        asked -= 1
    # The floor is NaN if no tokens are to be listed; with fewer lanes than requested tokens it is -inf or
    # NaN.
    value, column = _opened(floor)
    value = tl.where(floor == _NONE, -float("inf"), value)
    chosen = tl.load(logits_ptr + row * stride + tl.load(tokens_ptr + row)).to(tl.float32)
    tl.store(floors_ptr + row * 2, chosen)
    tl.store(floors_ptr + row * 2 + 1, value)
    tl.store(limits_ptr + row, column)
    tl.store(found_ptr + row, 0)


@triton.jit  # type: ignore[untyped-decorator]
def rank(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    places_ptr,
    floors_ptr,
    limits_ptr,
    found_ptr,
    keys_ptr,
    ahead_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
):
    """Grid (splits, measured rows). Counts tokens likelier than the chosen one; lists the most likely."""
    split = tl.program_id(0)
    row = tl.load(places_ptr + tl.program_id(1)).to(tl.int64)
    chosen = tl.load(floors_ptr + row * 2)
    floor = tl.load(floors_ptr + row * 2 + 1)
    limit = tl.load(limits_ptr + row)
    column = columns_of(split)
    inside = column < vocab
    value = tl.load(logits_ptr + row * stride + column, mask=inside, other=-float("inf")).to(tl.float32)
    ahead = lanes_sum((value > chosen).to(tl.int32))
    tl.store(ahead_ptr + row * splits + split, tl.sum(ahead, axis=0))
    wanted = inside & ((value > floor) | ((value == floor) & (column <= limit)))
    left = bits_of(wanted)
    if any_of(left):
        # Their order is arbitrary: they are sorted later, and no two keys are equal.
        each = lanes_sum(wanted.to(tl.int32))
        place = tl.atomic_add(found_ptr + row + each * 0, each, mask=each > 0)
        while any_of(left):
            own, found, left = taken(split, left)
            own_value = tl.load(logits_ptr + row * stride + own, mask=found, other=0.0).to(tl.float32)
            found = found & (place < RIVALS)
            tl.store(keys_ptr + row * RIVALS + place, rival_key(own_value, own), mask=found)
            place += 1


@triton.jit(do_not_specialize=["most"])  # type: ignore[untyped-decorator]
def report(  # type: ignore[no-untyped-def]
    rows_ptr,
    ints_ptr,
    places_ptr,
    stats_ptr,
    floors_ptr,
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
    """Grid (measured rows,).

    Writes log-probability and rank of the chosen token; the most likely, best first.
    """
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(places_ptr + place).to(tl.int64)
    split = tl.arange(0, padded)
    exists = split < splits
    at = stats_ptr + (row * splits + split) * STATS
    highest = tl.load(at + 3, mask=exists, other=-float("inf"))
    shares = tl.load(at + 4, mask=exists, other=0.0)
    total = total_of(highest, shares)
    tl.store(chosen_ptr + place, tl.load(floors_ptr + row * 2) - total)
    ahead = tl.load(ahead_ptr + row * splits + split, mask=exists, other=0)
    tl.store(rank_ptr + place, tl.sum(ahead, axis=0).to(tl.int64) + 1)
    index = tl.arange(0, RIVALS)
    keys = tl.load(keys_ptr + row * RIVALS + index, mask=index < tl.load(found_ptr + row), other=_NONE)
    asked = _asked(rows_ptr, ints_ptr, row)
    n = asked * 0
    while n < asked:
        key = tl.max(keys, axis=0)
        keys = tl.where(keys == key, _NONE, keys)
        value, token = _opened(key)
        tl.store(top_ptr + place * most + n, value - total)
        tl.store(ids_ptr + place * most + n, tl.minimum(token, vocab - 1).to(tl.int64))
        n += 1


@triton.jit
def _asked(rows_ptr, ints_ptr, row):  # type: ignore[no-untyped-def]
    """The number of most likely tokens that the row's request asks for."""
    slot = tl.load(rows_ptr + row * 4).to(tl.int64)
    return tl.load(ints_ptr + slot * NUM_INTS + 2)


@triton.jit
def _opened(key):  # type: ignore[no-untyped-def]
    """Unpack a key: its logit and its column."""
    ordered = (key >> 32).to(tl.int32)
    bits = tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered)
    return bits.to(tl.float32, bitcast=True), (0x7FFFFFFF - (key & 0x7FFFFFFF)).to(tl.int32)
