"""State and measures of the search for a cut: see `engine.kernels.sampling.cut`."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from engine.kernels.sampling.tiles import (
    NUM_FLOATS,
    NUM_INTS,
    columns_of,
    deficit,
    edit_split,
    load_split,
    mass_of,
    within,
)

PASSES: Final = tl.constexpr(2)
PIVOTS: Final = tl.constexpr(8)
LIST: Final = tl.constexpr(8192)
"""Most tokens that are listed per row."""
STATE: Final = tl.constexpr(8)
"""State of a row's search before each pass, int64: what to do, lower and upper bound, measure at the lower
bound, target as the bits of a float64, deficit of the drawn token."""

# What is to be done.
DONE: Final = tl.constexpr(0)
SEARCH: Final = tl.constexpr(1)
"""Measure more deficits between the bounds, and list the tokens that remain between them."""
WHOLE: Final = tl.constexpr(2)
"""List all tokens up to the upper bound."""

FAR: Final = tl.constexpr(float(1 << 30))
"""A deficit beyond all bounds."""
MEASURE_STEPS: Final = tl.constexpr(float(1 << 40))


# Lists of the rows that a kernel has work for: their number, then the rows.
JOBS: Final = tl.constexpr(4)
TO_VERIFY: Final = tl.constexpr(0)
TO_SEARCH: Final = tl.constexpr(1)
TO_GATHER: Final = tl.constexpr(2)
TO_REDRAW: Final = tl.constexpr(3)


@triton.jit  # type: ignore[untyped-decorator]
def add_job(jobs_ptr, row, kind: tl.constexpr, capacity: tl.constexpr):  # type: ignore[no-untyped-def]
    """Append a row to a list. The order is arbitrary, and nothing depends on it."""
    jobs_ptr += kind * (capacity + 1)
    tl.store(jobs_ptr + 1 + tl.atomic_add(jobs_ptr, 1), row.to(tl.int32))


@triton.jit
def cuts_of(floats_ptr, ints_ptr, slot):  # type: ignore[no-untyped-def]
    """top_k, 0 if it is off; top_p; and the deficit at which min-p cuts."""
    ints_ptr += slot * NUM_INTS
    return tl.load(ints_ptr), tl.load(floats_ptr + slot * NUM_FLOATS + 1), tl.load(ints_ptr + 1)


@triton.jit
def weight_of(below, most, counted):  # type: ignore[no-untyped-def]
    """The measure of tokens up to the deficit `most`: their number or their mass."""
    return tl.where(within(below, most), tl.where(counted, 1.0, mass_of(below)), 0.0)


@triton.jit
def in_steps(lanes):  # type: ignore[no-untyped-def]
    return tl.sum((lanes * MEASURE_STEPS).to(tl.int64), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def deficits_of(source, split, highest, vocab: tl.constexpr):  # type: ignore[no-untyped-def]
    """Deficits of a split; outside the vocabulary, more than any bound."""
    value = edit_split(load_split(source, split, vocab), split, source, vocab)
    return tl.where(columns_of(split) < vocab, deficit(value, highest, source[3]), FAR)


@triton.jit
def pivot_of(low, high, j):  # type: ignore[no-untyped-def]
    """The j-th deficit that is measured between the bounds."""
    return low + ((high - low).to(tl.int64) * (j + 1) // 9).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def state_of(  # type: ignore[no-untyped-def]
    state_ptr,
    sums_ptr,
    row,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
    number: tl.constexpr,
):
    """Bounds, the measure at the lower one, and the target, after `number` passes."""
    before: tl.constexpr = number - 1 if number > 0 else 0
    at = state_ptr + (before * capacity + row) * STATE
    low = tl.load(at + 1).to(tl.int32)
    high = tl.load(at + 2).to(tl.int32)
    base = tl.load(at + 3)
    target = tl.load(state_ptr + row * STATE + 4).to(tl.float64, bitcast=True)
    if number > 0:
        split = tl.arange(0, padded)[:, None]
        j = tl.arange(0, PIVOTS)
        parts = sums_ptr + ((before * capacity + row) * splits + split) * PIVOTS + j[None, :]
        sums = tl.sum(tl.load(parts, mask=split < splits, other=0), axis=0)
        pivots = pivot_of(low, high, j)
        enough = sums.to(tl.float64) >= target
        lower = tl.max(tl.where(enough, low, pivots), axis=0)
        high = tl.minimum(high, tl.min(tl.where(enough, pivots, high), axis=0))
        low = tl.minimum(lower, high)
        base = tl.maximum(base, tl.max(tl.where(enough, 0, sums), axis=0))
    return low, high, base, target


@triton.jit  # type: ignore[untyped-decorator]
def bounds_of_list(  # type: ignore[no-untyped-def]
    todo,
    state_ptr,
    sums_ptr,
    floats_ptr,
    ints_ptr,
    rows_ptr,
    row,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
):
    """Bounds of the listed tokens. A lower bound below zero: the list holds all that the cut may keep."""
    low = tl.full((), -1, dtype=tl.int32)
    high = tl.load(state_ptr + row * STATE + 2).to(tl.int32)
    if todo == SEARCH:
        low, high, _, _ = state_of(state_ptr, sums_ptr, row, splits, padded, capacity, PASSES)
        top_k, top_p, _ = cuts_of(floats_ptr, ints_ptr, tl.load(rows_ptr + row * 4).to(tl.int64))
        low = tl.where((top_k > 0) & (top_p < 1.0), -1, low)
    return low, high
