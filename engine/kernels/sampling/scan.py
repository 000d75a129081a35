"""One pass over the logits: greedy choices, untruncated draws, inputs of truncation and log-probabilities."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.sampling.tiles import (
    LANES,
    MEASURED,
    ONE_COUNT,
    RANDOM,
    RECORDED,
    STATS,
    TRUNCATED,
    bitmap_of,
    columns_of,
    deficit,
    edit_split,
    gumbel,
    hashed,
    key_of,
    lanes_max,
    lanes_min,
    lanes_sum,
    load_edited,
    load_split,
    most_noise,
    open_row,
    picked,
    share_of,
    within,
)


@triton.jit  # type: ignore[untyped-decorator]
def scan(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    rows_ptr,
    floats_ptr,
    marks_ptr,
    bitmap_ptr,
    biases_ptr,
    stats_ptr,
    picks_ptr,
    peaks_ptr,
    raw_peaks_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
):
    """Grid (splits, rows). Writes STATS numbers and the best token of each split.

    A token's score is its logit; in rows that draw, the scaled logit plus noise. Truncated rows also write
    the highest edited logit of each lane, [row, split, LANES]; measured rows write the highest logit as a
    key: see `engine.kernels.sampling.report`.
    """
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    source = open_row(logits_ptr, stride, rows_ptr, floats_ptr, marks_ptr, bitmap_ptr, biases_ptr, row)
    flags = source[2]
    column = columns_of(split)
    lane = tl.arange(0, LANES)
    at = row * splits + split
    raw = load_split(source, split, vocab)
    size = raw.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.max(lanes_max(tl.where(column < vocab, size, 0)), axis=0)
    tl.store(stats_ptr + at * STATS + 5, (largest >= 0x7F800000).to(tl.float32))
    if (flags & MEASURED) != 0:
        highest = lanes_max(raw)
        first = lanes_min(tl.where(raw == highest[None, :, None], column, 2147483647))
        tl.store(raw_peaks_ptr + at * LANES + lane, rival_key(highest, first))
        top, share = share_of(raw, highest)
        tl.store(stats_ptr + at * STATS + 3, top)
        tl.store(stats_ptr + at * STATS + 4, share)
    value = edit_split(raw, split, source, vocab)
    peak = lanes_max(value)
    tl.store(stats_ptr + at * STATS + 1, tl.max(peak, axis=0))
    if (flags & TRUNCATED) != 0:
        tl.store(peaks_ptr + at * LANES + lane, peak)
        lowest = lanes_min(tl.where(value > -float("inf"), value, float("inf")))
        tl.store(stats_ptr + at * STATS + 2, tl.min(lowest, axis=0))
    if (flags & RANDOM) != 0:
        score, token = _drawn(value, column, column < vocab, source, key_of(rows_ptr, row), vocab)
    else:
        score = tl.max(peak, axis=0)
        token = tl.min(lanes_min(tl.where(value == score, column, 2147483647)), axis=0)
    tl.store(stats_ptr + at * STATS, score)
    tl.store(picks_ptr + at, token)


@triton.jit  # type: ignore[untyped-decorator]
def _drawn(value, column, kept, source, key, vocab: tl.constexpr):  # type: ignore[no-untyped-def]
    """The best score of a split, and its token. Noise is computed only for tokens that may be the best."""
    bits = hashed(column, key)
    most = tl.where(kept, value * source[3] + most_noise(bits), -float("inf"))
    best = lanes_max(most)
    first = lanes_min(tl.where(most == best[None, :, None], column, 2147483647))
    own = load_edited(source, first, vocab) * source[3] + gumbel(hashed(first, key))
    own = tl.where(best > -float("inf"), own, -float("inf"))
    score = tl.max(own, axis=0)
    token = tl.min(tl.where(own == score, first, 2147483647), axis=0)
    # If a lane has two tokens that may be better, the noise of all is computed. `slack` covers rounding.
    slack = 1e-3 + 1e-5 * tl.abs(score)
    least = tl.where(score > -float("inf"), score - slack, float("inf"))
    if tl.max(lanes_sum((most >= least).to(tl.int32)), axis=0) > 1:
        every = tl.where(kept, value * source[3] + gumbel(bits), -float("inf"))
        score = tl.max(lanes_max(every), axis=0)
        token = tl.min(lanes_min(tl.where(every == score, column, 2147483647)), axis=0)
    return score, token


@triton.jit
def rival_key(value, column):  # type: ignore[no-untyped-def]
    """An int64 key that sorts by logit; of equal logits, the first column is highest."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)  # -0.0 + 0.0 is 0.0: they are equal
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def redraw(  # type: ignore[no-untyped-def]
    logits_ptr,
    stride,
    rows_ptr,
    floats_ptr,
    marks_ptr,
    bitmap_ptr,
    biases_ptr,
    highest_ptr,
    cuts_ptr,
    kept_scores_ptr,
    kept_picks_ptr,
    jobs_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
):
    """Grid (splits, any).

    Draws again, within the cut, for the rows at `jobs_ptr`: their number, then rows.
    """
    split = tl.program_id(0)
    job = tl.program_id(1)
    number = tl.load(jobs_ptr)
    while job < number:
        row = tl.load(jobs_ptr + 1 + job).to(tl.int64)
        source = open_row(logits_ptr, stride, rows_ptr, floats_ptr, marks_ptr, bitmap_ptr, biases_ptr, row)
        cut = tl.load(cuts_ptr + row * 2)
        value = edit_split(load_split(source, split, vocab), split, source, vocab)
        column = columns_of(split)
        kept = within(deficit(value, tl.load(highest_ptr + row), source[3]), cut) & (column < vocab)
        score, token = _drawn(value, column, kept, source, key_of(rows_ptr, row), vocab)
        tl.store(kept_scores_ptr + row * splits + split, score)
        tl.store(kept_picks_ptr + row * splits + split, token)
        job += tl.num_programs(1)


@triton.jit  # type: ignore[untyped-decorator]
def conclude(  # type: ignore[no-untyped-def]
    rows_ptr,
    marks_ptr,
    bitmap_ptr,
    stats_ptr,
    picks_ptr,
    cuts_ptr,
    kept_scores_ptr,
    kept_picks_ptr,
    tokens_ptr,
    finite_ptr,
    jobs_ptr,
    vocab: tl.constexpr,
    splits: tl.constexpr,
    padded: tl.constexpr,
    lists: tl.constexpr,
    list_stride: tl.constexpr,
):
    """Grid (rows,). Writes each row's token and whether its logits are finite; counts the token for
    penalties.

    Empties the lists of rows for the next step.
    """
    row = tl.program_id(0).to(tl.int64)
    if row == 0:
        tl.store(jobs_ptr + tl.arange(0, lists) * list_stride, tl.zeros((lists,), dtype=tl.int32))
    slot = tl.load(rows_ptr + row * 4).to(tl.int64)
    flags = tl.load(rows_ptr + row * 4 + 3)
    split = tl.arange(0, padded)
    broken = tl.load(stats_ptr + (row * splits + split) * STATS + 5, mask=split < splits, other=0.0)
    tl.store(finite_ptr + row, tl.max(broken, axis=0) == 0)
    token = picked(stats_ptr, picks_ptr, row, STATS, splits, padded)
    if (flags & TRUNCATED) != 0:
        token = tl.load(cuts_ptr + row * 2 + 1)
        if token == -1:
            token = picked(kept_scores_ptr, kept_picks_ptr, row, 1, splits, padded)
    # A row of only NaN has no best token.
    token = tl.minimum(tl.maximum(token, 0), vocab - 1)
    tl.store(tokens_ptr + row, token.to(tl.int64))
    if (flags & RECORDED) != 0:
        mark = marks_ptr + slot * vocab + token
        tl.store(mark, tl.load(mark) + ONE_COUNT)
        word = bitmap_of(bitmap_ptr, slot, vocab) + (token >> 5)
        tl.store(word, tl.load(word) | (1 << (token & 31)))
