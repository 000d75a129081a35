"""Ends the search for a cut: among the listed tokens, or else among all tokens of a row."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from engine.kernels.sampling.search import (
    DONE,
    FAR,
    LIST,
    MEASURE_STEPS,
    PASSES,
    SEARCH,
    STATE,
    TO_REDRAW,
    add_job,
    bounds_of_list,
    cuts_of,
    deficits_of,
    in_steps,
    state_of,
    weight_of,
)
from engine.kernels.sampling.tiles import (
    deficit,
    gumbel,
    hashed,
    key_of,
    lanes_sum,
    open_row,
    within,
)

_SHORT: Final = tl.constexpr(1024)
"""Length of a shorter list, which is faster and nearly always long enough for top-k."""


@triton.jit  # type: ignore[untyped-decorator]
def finish(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    rows_ptr,
    floats_ptr,
    ints_ptr,
    marks_ptr,
    bitmap_ptr,
    biases_ptr,
    highest_ptr,
    state_ptr,
    sums_ptr,
    lengths_ptr,
    values_ptr,
    columns_ptr,
    cuts_ptr,
    jobs_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
):
    """Grid (rows,). Writes the cut of each row, and its token; -1 if it is still to be drawn.

    If the list was too short, reads the whole row for every step of the search.
    """
    row = tl.program_id(0).to(tl.int64)
    todo = tl.load(state_ptr + row * STATE)
    if todo == DONE:
        return
    source = open_row(logits_ptr, stride, rows_ptr, floats_ptr, marks_ptr, bitmap_ptr, biases_ptr, row)
    top_k, top_p, limit = cuts_of(floats_ptr, ints_ptr, source[1])
    highest = tl.load(highest_ptr + row)
    length = tl.load(lengths_ptr + row)
    below_all, _ = bounds_of_list(
        todo, state_ptr, sums_ptr, floats_ptr, ints_ptr, rows_ptr, row, splits, padded, capacity
    )
    whole = below_all < 0
    low = tl.full((), -1, dtype=tl.int32)
    high = tl.load(state_ptr + row * STATE + 2).to(tl.int32)
    base = tl.full((), 0, dtype=tl.int64)
    target = top_k.to(tl.float64) * MEASURE_STEPS
    if todo == SEARCH:
        low, high, base, target = state_of(state_ptr, sums_ptr, row, splits, padded, capacity, PASSES)
        if whole:
            base = tl.full((), 0, dtype=tl.int64)
    both = (top_k > 0) & (top_p < 1.0)
    by_mass = top_k < 0
    token = tl.full((), -1, dtype=tl.int32)
    first = tl.full((), -1, dtype=tl.int32)
    listed = (length, values_ptr + row * LIST, columns_ptr + row * LIST)
    asked = (low, high, base, target, top_k, top_p, limit)
    if length <= _SHORT:
        cut, token = _settled(source, highest, listed, asked, whole, key_of(rows_ptr, row), _SHORT)
    elif length <= LIST:
        cut, token = _settled(source, highest, listed, asked, whole, key_of(rows_ptr, row), LIST)
    else:
        cut = _cut_of_row(source, highest, low, high, target, top_k > 0, vocab, splits)
        if both:
            cut = tl.minimum(cut, limit)
            total = _measured(source, highest, cut, by_mass, vocab, splits)
            share = total.to(tl.float64) * top_p.to(tl.float64)
            cut = _cut_of_row(source, highest, first, cut, share, by_mass, vocab, splits)
        cut = tl.minimum(cut, limit)
    tl.store(cuts_ptr + row * 2, cut)
    tl.store(cuts_ptr + row * 2 + 1, token)
    if token == -1:
        add_job(jobs_ptr, row, TO_REDRAW, capacity)


@triton.jit  # type: ignore[untyped-decorator]
def _settled(  # type: ignore[no-untyped-def]
    source, highest, listed, asked, whole, key, size: tl.constexpr
):
    """The cut among up to `size` listed tokens, and the token if the list has all that may be kept."""
    length, values_ptr, columns_ptr = listed
    low, high, base, target, top_k, top_p, limit = asked
    index = tl.arange(0, size)
    exists = index < length
    value = tl.load(values_ptr + index, mask=exists, other=-float("inf"))
    column = tl.load(columns_ptr + index, mask=exists, other=2147483647)
    below = tl.where(exists, deficit(value, highest, source[3]), FAR)
    cut = _cut_of_list(below, low, high, base, target, top_k > 0)
    if (top_k > 0) & (top_p < 1.0):
        cut = tl.minimum(cut, limit)
        by_mass = top_k < 0
        total = in_steps(weight_of(below, cut, by_mass))
        share = total.to(tl.float64) * top_p.to(tl.float64)
        first = tl.full((), -1, dtype=tl.int32)
        cut = _cut_of_list(below, first, cut, base * 0, share, by_mass)
    cut = tl.minimum(cut, limit)
    token = tl.full((), -1, dtype=tl.int32)
    if whole:
        score = value * source[3] + gumbel(hashed(column, key))
        score = tl.where(within(below, cut), score, -float("inf"))
        token = tl.min(tl.where(score == tl.max(score, axis=0), column, 2147483647), axis=0)
    return cut, token


@triton.jit
def _cut_of_list(below, low, high, base, target, counted):  # type: ignore[no-untyped-def]
    """The lowest deficit in (low, high] with enough at or above it; `high` if there is none.

    `base` is the measure of the tokens above the list.
    """
    weight = (weight_of(below, high, counted) * MEASURE_STEPS).to(tl.int64)
    while high - low > 1:
        middle = low + (high - low) // 2
        measure = base + tl.sum(tl.where(within(below, middle), weight, 0), axis=0)
        enough = measure.to(tl.float64) >= target
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit  # type: ignore[untyped-decorator]
def _cut_of_row(  # type: ignore[no-untyped-def]
    source, highest, low, high, target, counted, vocab: tl.constexpr, splits: tl.constexpr
):
    """The cut among all tokens of a row."""
    while high - low > 1:
        middle = low + (high - low) // 2
        enough = _measured(source, highest, middle, counted, vocab, splits).to(tl.float64) >= target
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit  # type: ignore[untyped-decorator]
def _measured(source, highest, most, counted, vocab: tl.constexpr, splits: tl.constexpr):  # type: ignore[no-untyped-def]
    """Measure of a row's tokens whose deficit is at most `most`."""
    total = tl.full((), 0, dtype=tl.int64)
    for split in tl.range(splits):
        total += in_steps(lanes_sum(weight_of(deficits_of(source, split, highest, vocab), most, counted)))
    return total
