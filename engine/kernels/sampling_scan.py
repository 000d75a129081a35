"""One pass over the logits: greedy choices, plain draws, and what cuts and log-probabilities begin with."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.sampling_tiles import (
    DRAWN,
    EDITED,
    ITERATIONS,
    LANES,
    MEASURED,
    ONE_COUNT,
    RECORDED,
    SPLIT,
    STATS,
    TRUNCATED,
    WIDE,
    columns_of,
    deficit,
    edited,
    flags_of,
    gumbel,
    highest_of,
    key_of,
    load_edited,
    open_row,
    picked,
)

__all__ = ["conclude", "redraw", "scan"]


@triton.jit  # type: ignore[untyped-decorator]
def scan(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    tables,
    stats_ptr,
    picks_ptr,
    peaks_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
):
    """Grid (splits, rows). Leaves STATS numbers and the best token of each split.

    A token's score is its logit, or scaled logit and noise in rows that draw. For measured rows also leaves
    the best logit of each lane as a key, [row, split, LANES] int64: see `engine.kernels.sampling_report`.
    """
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    source = open_row(logits_ptr, stride, tables, row)
    flags = source[2]
    inverse_temperature = source[3]
    first, second = key_of(tables, row)
    best = tl.full((LANES, WIDE), -float("inf"), dtype=tl.float32)
    where = tl.zeros((LANES, WIDE), dtype=tl.int32)
    highest = tl.full((LANES,), -float("inf"), dtype=tl.float32)
    lowest = tl.full((LANES,), float("inf"), dtype=tl.float32)
    raw_highest = tl.full((LANES,), -float("inf"), dtype=tl.float32)
    raw_sum = tl.zeros((LANES,), dtype=tl.float32)
    peak = tl.full((LANES,), -(1 << 63), dtype=tl.int64)
    broken = tl.zeros((LANES, WIDE), dtype=tl.int32)
    for i in tl.range(ITERATIONS):
        column = columns_of(split, i)
        inside = column < vocab
        raw = tl.load(logits_ptr + row * stride + column, mask=inside, other=-float("inf")).to(tl.float32)
        broken |= (inside & ~(tl.abs(raw) < float("inf"))).to(tl.int32)
        if (flags & MEASURED) != 0:
            higher = tl.maximum(raw_highest, tl.max(raw, axis=1))
            base = tl.where(higher > -float("inf"), higher, 0.0)
            raw_sum = raw_sum * tl.exp(raw_highest - base) + tl.sum(tl.exp(raw - base[:, None]), axis=1)
            raw_highest = higher
            peak = tl.maximum(peak, tl.max(tl.where(inside, rival_key(raw, column), -(1 << 63)), axis=1))
        value = raw
        if (flags & EDITED) != 0:
            value = edited(value, column, inside, source, vocab)
        score = value
        if (flags & DRAWN) != 0:
            score = value * inverse_temperature + gumbel(column, first, second)
        highest = tl.maximum(highest, tl.max(value, axis=1))
        lowest = tl.minimum(lowest, tl.min(tl.where(value > -float("inf"), value, float("inf")), axis=1))
        better = inside & (score > best)
        best = tl.where(better, score, best)
        where = tl.where(better, column, where)
    top = tl.max(tl.max(best, axis=1), axis=0)
    ties = tl.where(best == top, where, vocab - 1)
    at = row * splits + split
    tl.store(picks_ptr + at, tl.min(tl.min(ties, axis=1), axis=0))
    tl.store(stats_ptr + at * STATS, top)
    tl.store(stats_ptr + at * STATS + 1, tl.max(highest, axis=0))
    tl.store(stats_ptr + at * STATS + 2, tl.min(lowest, axis=0))
    tl.store(stats_ptr + at * STATS + 5, tl.max(tl.max(broken, axis=1), axis=0).to(tl.float32))
    if (flags & MEASURED) != 0:
        raw_top = tl.max(raw_highest, axis=0)
        shares = tl.where(raw_sum > 0, raw_sum * tl.exp(raw_highest - raw_top), 0.0)
        tl.store(stats_ptr + at * STATS + 3, raw_top)
        tl.store(stats_ptr + at * STATS + 4, tl.sum(shares, axis=0))
        tl.store(peaks_ptr + at * LANES + tl.arange(0, LANES), peak)


@triton.jit  # type: ignore[untyped-decorator]
def rival_key(value, column):  # type: ignore[no-untyped-def]
    """An int64 that orders logits, and equal ones by their column, the first highest."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)  # -0.0 + 0.0 is 0.0: they are equal
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def redraw(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    tables,
    stats_ptr,
    picks_ptr,
    cuts_ptr,
    kept_scores_ptr,
    kept_picks_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
):
    """Grid (splits, rows). Draws again, from tokens within the cut, in rows whose first draw is not."""
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    if (flags_of(tables, row) & TRUNCATED) == 0:
        return
    source = open_row(logits_ptr, stride, tables, row)
    inverse_temperature = source[3]
    first, second = key_of(tables, row)
    highest = highest_of(stats_ptr, row, splits, padded)
    cut = tl.load(cuts_ptr + row)
    token = picked(stats_ptr, picks_ptr, row, STATS, splits, padded)
    own = load_edited(source, token, vocab)
    if deficit(own, highest, inverse_temperature) <= cut:
        return
    best = tl.full((LANES, WIDE), -float("inf"), dtype=tl.float32)
    where = tl.zeros((LANES, WIDE), dtype=tl.int32)
    for i in tl.range(ITERATIONS):
        column = columns_of(split, i)
        value = load_edited(source, column, vocab)
        kept = (deficit(value, highest, inverse_temperature) <= cut) & (column < vocab)
        if tl.max(tl.max(kept.to(tl.int32), axis=1), axis=0) != 0:
            score = value * inverse_temperature + gumbel(column, first, second)
            better = kept & (score > best)
            best = tl.where(better, score, best)
            where = tl.where(better, column, where)
    top = tl.max(tl.max(best, axis=1), axis=0)
    ties = tl.where(best == top, where, vocab - 1)
    tl.store(kept_scores_ptr + row * splits + split, top)
    tl.store(kept_picks_ptr + row * splits + split, tl.min(tl.min(ties, axis=1), axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def conclude(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    tables,
    stats_ptr,
    picks_ptr,
    cuts_ptr,
    kept_scores_ptr,
    kept_picks_ptr,
    tokens_ptr,
    finite_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
):
    """Grid (rows,). The token of each row, whether its logits are finite; counts the token for penalties."""
    row = tl.program_id(0).to(tl.int64)
    source = open_row(logits_ptr, stride, tables, row)
    flags = source[2]
    split = tl.arange(0, padded)
    broken = tl.load(stats_ptr + (row * splits + split) * STATS + 5, mask=split < splits, other=0.0)
    tl.store(finite_ptr + row, tl.max(broken, axis=0) == 0)
    token = picked(stats_ptr, picks_ptr, row, STATS, splits, padded)
    if (flags & TRUNCATED) != 0:
        highest = highest_of(stats_ptr, row, splits, padded)
        own = load_edited(source, token, vocab)
        if deficit(own, highest, source[3]) > tl.load(cuts_ptr + row):
            token = picked(kept_scores_ptr, kept_picks_ptr, row, 1, splits, padded)
    # Scores that are NaN are never picked, so that a row of them has none.
    token = tl.minimum(tl.maximum(token, 0), vocab - 1)
    tl.store(tokens_ptr + row, token.to(tl.int64))
    if (flags & RECORDED) != 0:
        mark = tables[3] + source[1] * vocab + token
        tl.store(mark, tl.load(mark) + ONE_COUNT)
        word = tables[4] + source[1] * ((vocab + 31) // 32) + (token >> 5)
        tl.store(word, tl.load(word) | (1 << (token & 31)))
