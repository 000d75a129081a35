"""Where top-k, min-p and top-p cut a row: the deficit of the last token that stays, found without a sort.

A cut is the lowest deficit at which enough tokens, or enough of their mass, lie at or above it. It is searched
between a deficit that is too low and one that is not: `narrow` measures eight deficits at a time, all thread
blocks of a row together; `gather` and `finish` then settle the few tokens that are left between the two. In a
row that is not cut by both top-k and top-p, the token that was drawn from the whole distribution is measured
first: where it lies within the cut, as most do, nothing is left to be searched.

Measures are sums of float32 over a lane, in order, then of integers in steps of 2^-40.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from engine.kernels.sampling_tiles import (
    ITERATIONS,
    LANES,
    STATS,
    TRUNCATED,
    columns_of,
    cuts_of,
    deficit,
    flags_of,
    highest_of,
    load_edited,
    mass_of,
    open_row,
    picked,
)

__all__ = ["LIST", "PASSES", "PIVOTS", "STATE", "finish", "gather", "narrow"]

PASSES: Final = tl.constexpr(3)
PIVOTS: Final = tl.constexpr(8)
LIST: Final = tl.constexpr(512)
"""Deficits that a split may leave for `finish`."""
STATE: Final = tl.constexpr(8)
"""Of a row before a pass, int64: lower and upper bound, the drawn token's deficit less one, the measure at the
lower bound, whether the search is over; whether the pass measured its pivots."""

_MEASURE_STEPS: Final = tl.constexpr(float(1 << 40))


@triton.jit  # type: ignore[untyped-decorator]
def narrow(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    tables,
    scanned,
    search,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
    number: tl.constexpr,
):
    """Grid (splits, rows); pass `number` of PASSES. Measures eight deficits, as sums of each split."""
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    if (flags_of(tables, row) & TRUNCATED) == 0:
        return
    source = open_row(logits_ptr, stride, tables, row)
    top_k, top_p, _ = cuts_of(tables, row)
    if number == 0:
        high, drawn = _bounds(source, tables, scanned, row, vocab, splits, padded)
        low = tl.full((), -1, dtype=tl.int32)
        base = tl.full((), 0, dtype=tl.int64)
        over = (top_k == 0) & (top_p >= 1.0)  # min-p alone needs no search
    else:
        low, high, drawn, base, over = _state(tables, search, row, splits, padded, capacity, number)
    if split == 0:
        at = search[0] + (number * capacity + row) * STATE
        tl.store(at, low.to(tl.int64))
        tl.store(at + 1, high.to(tl.int64))
        tl.store(at + 2, drawn.to(tl.int64))
        tl.store(at + 3, base)
        tl.store(at + 4, over.to(tl.int64))
    if over == 0:
        highest = highest_of(scanned[0], row, splits, padded)
        p1 = _pivot(low, high, drawn, 1)
        p2 = _pivot(low, high, drawn, 2)
        p3 = _pivot(low, high, drawn, 3)
        p4 = _pivot(low, high, drawn, 4)
        p5 = _pivot(low, high, drawn, 5)
        p6 = _pivot(low, high, drawn, 6)
        p7 = _pivot(low, high, drawn, 7)
        s0 = tl.zeros((LANES,), dtype=tl.float32)
        s1 = tl.zeros((LANES,), dtype=tl.float32)
        s2 = tl.zeros((LANES,), dtype=tl.float32)
        s3 = tl.zeros((LANES,), dtype=tl.float32)
        s4 = tl.zeros((LANES,), dtype=tl.float32)
        s5 = tl.zeros((LANES,), dtype=tl.float32)
        s6 = tl.zeros((LANES,), dtype=tl.float32)
        s7 = tl.zeros((LANES,), dtype=tl.float32)
        for i in tl.range(ITERATIONS):
            column = columns_of(split, i)
            below = deficit(load_edited(source, column, vocab), highest, source[3])
            weight = _weight(below, high, top_k > 0, column < vocab)
            s0 += tl.sum(weight, axis=1)
            s1 += tl.sum(tl.where(below <= p1, weight, 0.0), axis=1)
            s2 += tl.sum(tl.where(below <= p2, weight, 0.0), axis=1)
            s3 += tl.sum(tl.where(below <= p3, weight, 0.0), axis=1)
            s4 += tl.sum(tl.where(below <= p4, weight, 0.0), axis=1)
            s5 += tl.sum(tl.where(below <= p5, weight, 0.0), axis=1)
            s6 += tl.sum(tl.where(below <= p6, weight, 0.0), axis=1)
            s7 += tl.sum(tl.where(below <= p7, weight, 0.0), axis=1)
        at = search[1] + ((number * capacity + row) * splits + split) * PIVOTS
        tl.store(at, _in_steps(s0))
        tl.store(at + 1, _in_steps(s1))
        tl.store(at + 2, _in_steps(s2))
        tl.store(at + 3, _in_steps(s3))
        tl.store(at + 4, _in_steps(s4))
        tl.store(at + 5, _in_steps(s5))
        tl.store(at + 6, _in_steps(s6))
        tl.store(at + 7, _in_steps(s7))


@triton.jit  # type: ignore[untyped-decorator]
def gather(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    tables,
    scanned,
    search,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
):
    """Grid (splits, rows). Lists the deficits between the bounds, if they are not more than LIST.

    In rows cut by top-k and top-p, all up to the upper bound: top-p is then searched in the list, too.
    """
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    if (flags_of(tables, row) & TRUNCATED) == 0:
        return
    low, high, _, _, over = _state(tables, search, row, splits, padded, capacity, PASSES)
    top_k, top_p, _ = cuts_of(tables, row)
    both = (top_k > 0) & (top_p < 1.0)
    if (over == 0) | both:
        low = tl.where(both, -1, low)
        source = open_row(logits_ptr, stride, tables, row)
        highest = highest_of(scanned[0], row, splits, padded)
        place = search[2] + (row * splits + split) * LIST
        length = tl.full((), 0, dtype=tl.int32)
        for i in tl.range(ITERATIONS):
            column = columns_of(split, i)
            below = deficit(load_edited(source, column, vocab), highest, source[3])
            wanted = ((below > low) & (below <= high) & (column < vocab)).to(tl.int32)
            each = tl.sum(wanted, axis=1)
            found = tl.sum(each, axis=0)
            if (found > 0) & (length + found <= LIST):
                before = tl.cumsum(each, axis=0) - each
                index = length + before[:, None] + tl.cumsum(wanted, axis=1) - wanted
                tl.store(place + index, below, mask=wanted != 0)
            length += found
        tl.store(search[3] + row * splits + split, length)


@triton.jit  # type: ignore[untyped-decorator]
def finish(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    tables,
    scanned,
    search,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
):
    """Grid (rows,). The cut of each row. Reads the whole row again and again where a list was too short."""
    row = tl.program_id(0).to(tl.int64)
    if (flags_of(tables, row) & TRUNCATED) == 0:
        return
    low, high, drawn, base, over = _state(tables, search, row, splits, padded, capacity, PASSES)
    source = open_row(logits_ptr, stride, tables, row)
    top_k, top_p, limit = cuts_of(tables, row)
    both = (top_k > 0) & (top_p < 1.0)
    # Where the drawn token was accepted, the cut is below it, and it does not matter how far.
    cut = tl.where((high - low > 1) & (drawn <= low), low + 1, high)
    if (over == 0) | both:
        highest = highest_of(scanned[0], row, splits, padded)
        split = tl.arange(0, padded)
        lengths = search[3] + row * splits
        listed = tl.max(tl.load(lengths + split, mask=split < splits, other=0), axis=0) <= LIST
        lists = (listed, search[2] + row * splits * LIST, lengths, highest)
        if over == 0:
            base = tl.where(listed & (both == 0), base, 0)
            target = _target(tables, search, row, splits, padded)
            cut = _search(low, high, base, target, top_k > 0, source, lists, vocab, splits, padded)
        if both:
            cut = tl.minimum(cut, limit)
            total = _measured(cut, top_k == 0, source, lists, vocab, splits, padded)
            target = total.to(tl.float64) * top_p.to(tl.float64)
            zero = tl.full((), 0, dtype=tl.int64)
            cut = _search(
                zero.to(tl.int32) - 1, cut, zero, target, top_k == 0, source, lists, vocab, splits, padded
            )
    tl.store(search[4] + row, tl.minimum(cut, limit))


@triton.jit  # type: ignore[untyped-decorator]
def _pivot(low, high, drawn, j):  # type: ignore[no-untyped-def]
    """The j-th deficit that is measured: the upper bound, the drawn token's less one, and six between."""
    between = low + ((high - low).to(tl.int64) * (j - 1) // 7).to(tl.int32)
    return tl.where(j == 0, high, tl.where(j == 1, drawn, between))


@triton.jit  # type: ignore[untyped-decorator]
def _weight(below, high, counted, inside):  # type: ignore[no-untyped-def]
    """What tokens count for up to `high`: their number or their mass."""
    return tl.where(inside & (below <= high), tl.where(counted, 1.0, mass_of(below)), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _in_steps(lanes):  # type: ignore[no-untyped-def]
    return tl.sum((lanes * _MEASURE_STEPS).to(tl.int64), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _bounds(  # type: ignore[no-untyped-def]
    source, tables, scanned, row, vocab: tl.constexpr, splits: tl.constexpr, padded: tl.constexpr
):
    """Before the first pass: the upper bound, and the drawn token's deficit less one."""
    split = tl.arange(0, padded)
    at = scanned[0] + (row * splits + split) * STATS
    highest = highest_of(scanned[0], row, splits, padded)
    lowest = tl.min(tl.load(at + 2, mask=split < splits, other=float("inf")), axis=0)
    token = picked(scanned[0], scanned[1], row, STATS, splits, padded)
    own = load_edited(source, token, vocab)
    top_k, _, limit = cuts_of(tables, row)
    high = deficit(lowest, highest, source[3])
    # Top-k counts what min-p takes away, too.
    return tl.where(top_k == 0, tl.minimum(high, limit), high), deficit(own, highest, source[3]) - 1


@triton.jit  # type: ignore[untyped-decorator]
def _target(tables, search, row, splits: tl.constexpr, padded: tl.constexpr):  # type: ignore[no-untyped-def]
    """What the search is for: top-k as a count, or top-p of all that was measured in the first pass."""
    top_k, top_p, _ = cuts_of(tables, row)
    split = tl.arange(0, padded)
    parts = tl.load(search[1] + (row * splits + split) * PIVOTS, mask=split < splits, other=0)
    share = tl.sum(parts, axis=0).to(tl.float64) * top_p.to(tl.float64)
    return tl.where(top_k > 0, top_k.to(tl.float64) * _MEASURE_STEPS, share)


@triton.jit  # type: ignore[untyped-decorator]
def _state(  # type: ignore[no-untyped-def]
    tables,
    search,
    row,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
    number: tl.constexpr,
):
    """Bounds, drawn token's deficit less one, base, and whether the search is over: after `number` passes."""
    at = search[0] + ((number - 1) * capacity + row) * STATE
    low = tl.load(at).to(tl.int32)
    high = tl.load(at + 1).to(tl.int32)
    drawn = tl.load(at + 2).to(tl.int32)
    base = tl.load(at + 3)
    over = tl.load(at + 4) != 0
    if over == 0:
        target = _target(tables, search, row, splits, padded)
        split = tl.arange(0, padded)[:, None]
        j = tl.arange(0, PIVOTS)
        parts = search[1] + (((number - 1) * capacity + row) * splits + split) * PIVOTS + j[None, :]
        sums = tl.sum(tl.load(parts, mask=split < splits, other=0), axis=0)
        pivots = _pivot(low, high, drawn, j)
        enough = sums.to(tl.float64) >= target
        lower = tl.max(tl.where(enough, low, pivots), axis=0)
        high = tl.minimum(high, tl.min(tl.where(enough, pivots, high), axis=0))
        low = tl.minimum(tl.maximum(low, lower), high)
        base = tl.maximum(base, tl.max(tl.where(enough, 0, sums), axis=0))
        top_k, top_p, limit = cuts_of(tables, row)
        # The token one deficit below one that is not enough stays.
        accepted = ((top_k == 0) | (top_p >= 1.0)) & (drawn <= low) & (drawn < limit)
        over = accepted | (high - low <= 1)
    return low, high, drawn, base, over


@triton.jit  # type: ignore[untyped-decorator]
def _search(  # type: ignore[no-untyped-def]
    low,
    high,
    base,
    target,
    counted,
    source,
    lists,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
):
    """The lowest deficit in (low, high] with enough at or above it; `high` if there is none.

    `base` is the measure of what is not in the list.
    """
    while high - low > 1:
        middle = low + (high - low) // 2
        measure = _measured(middle, counted, source, lists, vocab, splits, padded)
        enough = (measure + base).to(tl.float64) >= target
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit  # type: ignore[untyped-decorator]
def _measured(  # type: ignore[no-untyped-def]
    most, counted, source, lists, vocab: tl.constexpr, splits: tl.constexpr, padded: tl.constexpr
):
    """Measure of tokens in the lists, or in the row, whose deficit is at most `most`."""
    listed, lists_ptr, lengths_ptr, highest = lists
    total = tl.full((), 0, dtype=tl.int64)
    if listed:
        split = tl.arange(0, padded)[:, None]
        index = tl.arange(0, LIST)[None, :]
        exists = index < tl.load(lengths_ptr + split, mask=split < splits, other=0)
        below = tl.load(lists_ptr + split * LIST + index, mask=exists, other=0)
        weight = _weight(below, most, counted, exists)
        total += _in_steps(tl.reshape(weight, (padded * LIST,)))
    else:
        for i in tl.range(splits * ITERATIONS):
            column = columns_of(0, i)
            below = deficit(load_edited(source, column, vocab), highest, source[3])
            weight = _weight(below, most, counted, column < vocab)
            total += _in_steps(tl.sum(weight, axis=1))
    return total
