"""Finds where top-k, min-p and top-p truncate a row: the deficit of the last token kept, without a sort.

A cut is the lowest deficit at which enough tokens, or enough of their mass, lie at or above it.

- Top-k: the k-th best of the lanes' maxima is a lower bound of the k-th best token. Few tokens are above it.
- Top-p: the token drawn from the whole distribution is measured first. If it lies within the cut, as most do,
the search is done. In other rows, eight deficits are measured at a time.

The remaining few tokens are listed (`gather`). One thread block per row finds the cut among them (`finish`),
and draws from the list if it holds all tokens that the cut may keep. Measures are ordered float32 sums over a
lane, then integer sums in steps of 2^-40.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.sampling.search import (
    DONE,
    FAR,
    LIST,
    MEASURE_STEPS,
    PIVOTS,
    SEARCH,
    STATE,
    TO_GATHER,
    TO_REDRAW,
    TO_SEARCH,
    TO_VERIFY,
    WHOLE,
    add_job,
    bounds_of_list,
    cuts_of,
    deficits_of,
    in_steps,
    pivot_of,
    state_of,
    weight_of,
)
from engine.kernels.sampling.tiles import (
    LANES,
    NUM_INTS,
    STATS,
    TRUNCATED,
    any_of,
    bits_of,
    columns_of,
    deficit,
    edit_split,
    lanes_sum,
    load_edited,
    load_split,
    open_row,
    picked,
    taken,
    within,
)


@triton.jit  # type: ignore[untyped-decorator]
def prepare(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    rows_ptr,
    floats_ptr,
    ints_ptr,
    marks_ptr,
    bitmap_ptr,
    biases_ptr,
    stats_ptr,
    picks_ptr,
    peaks_ptr,
    highest_ptr,
    state_ptr,
    lengths_ptr,
    cuts_ptr,
    jobs_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
):
    """Grid (rows,). Computes the first bounds of the search; for top-k, from the lanes' best tokens."""
    row = tl.program_id(0).to(tl.int64)
    source = open_row(logits_ptr, stride, rows_ptr, floats_ptr, marks_ptr, bitmap_ptr, biases_ptr, row)
    at = state_ptr + row * STATE
    tl.store(at, DONE)
    if (source[2] & TRUNCATED) == 0:
        return
    top_k, top_p, limit = cuts_of(floats_ptr, ints_ptr, source[1])
    split = tl.arange(0, padded)
    stats = stats_ptr + (row * splits + split) * STATS
    highest = tl.max(tl.load(stats + 1, mask=split < splits, other=-float("inf")), axis=0)
    lowest = tl.min(tl.load(stats + 2, mask=split < splits, other=float("inf")), axis=0)
    token = picked(stats_ptr, picks_ptr, row, STATS, splits, padded)
    token = tl.minimum(tl.maximum(token, 0), vocab - 1)
    drawn = deficit(load_edited(source, token, vocab), highest, source[3]).to(tl.int32)
    high = deficit(lowest, highest, source[3]).to(tl.int32)
    todo = tl.full((), SEARCH, dtype=tl.int32)
    if top_k > 0:
        index = tl.arange(0, padded * LANES)
        exists = index < splits * LANES
        peak = tl.load(peaks_ptr + row * splits * LANES + index, mask=exists, other=-float("inf"))
        peak = tl.where(exists, deficit(peak, highest, source[3]), FAR)
        if tl.sum(within(peak, high).to(tl.int32), axis=0) >= top_k:
            low = tl.full((), -1, dtype=tl.int32)
            while high - low > 1:
                middle = low + (high - low) // 2
                enough = tl.sum(within(peak, middle).to(tl.int32), axis=0) >= top_k
                high = tl.where(enough, middle, high)
                low = tl.where(enough, low, middle)
            todo = tl.full((), WHOLE, dtype=tl.int32)
    else:  # top-k also counts tokens that min-p excludes
        high = tl.minimum(high, limit)
        if top_p >= 1.0:
            todo = tl.full((), DONE, dtype=tl.int32)
    tl.store(highest_ptr + row, highest)
    tl.store(lengths_ptr + row, 0)
    tl.store(cuts_ptr + row * 2, limit)
    tl.store(cuts_ptr + row * 2 + 1, tl.where(drawn <= limit, token, -1))
    tl.store(at, todo.to(tl.int64))
    tl.store(at + 1, -1)
    tl.store(at + 2, high.to(tl.int64))
    tl.store(at + 3, 0)
    tl.store(at + 5, drawn.to(tl.int64))
    if todo == SEARCH:
        add_job(jobs_ptr, row, TO_VERIFY, capacity)
    elif todo == WHOLE:
        add_job(jobs_ptr, row, TO_GATHER, capacity)
    elif drawn > limit:
        add_job(jobs_ptr, row, TO_REDRAW, capacity)


@triton.jit  # type: ignore[untyped-decorator]
def verify(  # type: ignore[no-untyped-def]
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
    jobs_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
):
    """Grid (splits, any). Measures the tokens likelier than the drawn one, and all tokens of the search."""
    split = tl.program_id(0)
    jobs_ptr += TO_VERIFY * (capacity + 1)
    job = tl.program_id(1)
    number = tl.load(jobs_ptr)
    while job < number:
        row = tl.load(jobs_ptr + 1 + job).to(tl.int64)
        at = state_ptr + row * STATE
        high = tl.load(at + 2).to(tl.int32)
        drawn = tl.load(at + 5).to(tl.int32)
        source = open_row(logits_ptr, stride, rows_ptr, floats_ptr, marks_ptr, bitmap_ptr, biases_ptr, row)
        counted = tl.load(ints_ptr + source[1] * NUM_INTS) > 0
        below = deficits_of(source, split, tl.load(highest_ptr + row), vocab)
        weight = weight_of(below, high, counted)
        sums = sums_ptr + (row * splits + split) * PIVOTS
        tl.store(sums, in_steps(lanes_sum(weight)))
        tl.store(sums + 1, in_steps(lanes_sum(tl.where(within(below, drawn - 1), weight, 0.0))))
        job += tl.num_programs(1)


@triton.jit  # type: ignore[untyped-decorator]
def judge(  # type: ignore[no-untyped-def]
    rows_ptr,
    floats_ptr,
    ints_ptr,
    state_ptr,
    sums_ptr,
    cuts_ptr,
    jobs_ptr,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
):
    """Grid (rows,). Decides whether the drawn token lies within the cut; if not, computes bounds."""
    row = tl.program_id(0).to(tl.int64)
    at = state_ptr + row * STATE
    if tl.load(at) != SEARCH:
        return
    slot = tl.load(rows_ptr + row * 4).to(tl.int64)
    top_k, top_p, limit = cuts_of(floats_ptr, ints_ptr, slot)
    split = tl.arange(0, padded)
    sums = sums_ptr + (row * splits + split) * PIVOTS
    total = tl.sum(tl.load(sums, mask=split < splits, other=0), axis=0)
    likelier = tl.sum(tl.load(sums + 1, mask=split < splits, other=0), axis=0)
    share = total.to(tl.float64) * top_p.to(tl.float64)
    # At least one step: the most likely token stays.
    target = tl.where(top_k > 0, top_k.to(tl.float64) * MEASURE_STEPS, tl.maximum(share, 1.0))
    drawn = tl.load(at + 5).to(tl.int32)
    high = tl.load(at + 2).to(tl.int32)
    tl.store(at + 4, target.to(tl.int64, bitcast=True))
    enough = likelier.to(tl.float64) >= target
    settled = (top_k == 0) | (top_p >= 1.0)
    if (enough == 0) & settled & (drawn <= limit):
        tl.store(at, DONE)
    else:
        if enough:
            tl.store(at + 2, tl.minimum(high, drawn - 1).to(tl.int64))
        elif drawn <= high:  # the drawn token is kept: likelier ones do not reach the target
            tl.store(at + 1, (drawn - 1).to(tl.int64))
            tl.store(at + 3, likelier)
        add_job(jobs_ptr, row, TO_SEARCH, capacity)
        add_job(jobs_ptr, row, TO_GATHER, capacity)


@triton.jit  # type: ignore[untyped-decorator]
def narrow(  # type: ignore[no-untyped-def]
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
    jobs_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
    number: tl.constexpr,
):
    """Grid (splits, any); pass `number` of PASSES. Measures deficits between the bounds, by split."""
    split = tl.program_id(0)
    jobs_ptr += TO_SEARCH * (capacity + 1)
    job = tl.program_id(1)
    jobs = tl.load(jobs_ptr)
    while job < jobs:
        row = tl.load(jobs_ptr + 1 + job).to(tl.int64)
        low, high, base, _ = state_of(state_ptr, sums_ptr, row, splits, padded, capacity, number)
        if (split == 0) & (number > 0):
            at = state_ptr + (number * capacity + row) * STATE
            tl.store(at + 1, low.to(tl.int64))
            tl.store(at + 2, high.to(tl.int64))
            tl.store(at + 3, base)
        source = open_row(logits_ptr, stride, rows_ptr, floats_ptr, marks_ptr, bitmap_ptr, biases_ptr, row)
        counted = tl.load(ints_ptr + source[1] * NUM_INTS) > 0
        below = deficits_of(source, split, tl.load(highest_ptr + row), vocab)
        weight = weight_of(below, high, counted)
        sums = sums_ptr + ((number * capacity + row) * splits + split) * PIVOTS
        for j in tl.static_range(PIVOTS):
            part = tl.where(within(below, pivot_of(low, high, j)), weight, 0.0)
            tl.store(sums + j, in_steps(lanes_sum(part)))
        job += tl.num_programs(1)


@triton.jit  # type: ignore[untyped-decorator]
def gather(  # type: ignore[no-untyped-def]
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
    jobs_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
    capacity: tl.constexpr,
):
    """Grid (splits, any). Lists tokens between the bounds, or all up to the upper one. Their order is
    arbitrary and does not affect the result.
    """
    split = tl.program_id(0)
    jobs_ptr += TO_GATHER * (capacity + 1)
    job = tl.program_id(1)
    number = tl.load(jobs_ptr)
    while job < number:
        row = tl.load(jobs_ptr + 1 + job).to(tl.int64)
        todo = tl.load(state_ptr + row * STATE)
        low, high = bounds_of_list(
            todo, state_ptr, sums_ptr, floats_ptr, ints_ptr, rows_ptr, row, splits, padded, capacity
        )
        source = open_row(logits_ptr, stride, rows_ptr, floats_ptr, marks_ptr, bitmap_ptr, biases_ptr, row)
        column = columns_of(split)
        value = edit_split(load_split(source, split, vocab), split, source, vocab)
        below = deficit(value, tl.load(highest_ptr + row), source[3])
        wanted = within(below, high) & (column < vocab) & (within(below, low) == 0)
        left = bits_of(wanted)
        if any_of(left):
            each = lanes_sum(wanted.to(tl.int32))
            place = tl.atomic_add(lengths_ptr + row + each * 0, each, mask=each > 0)
            while any_of(left):
                own, found, left = taken(split, left)
                found = found & (place < LIST)
                own_value = load_edited(source, own, vocab)
                tl.store(values_ptr + row * LIST + place, own_value, mask=found)
                tl.store(columns_ptr + row * LIST + place, own, mask=found)
                place += 1
        job += tl.num_programs(1)
