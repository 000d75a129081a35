"""Logarithms of the sums of exp(logit), with the bits that sampling computes log-probabilities from."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.sampling.tiles import SPLIT, columns_of, lanes_max, share_of, total_of


def log_totals(logits: torch.Tensor) -> torch.Tensor:
    """Log of the sum of each row of `logits` [S, vocab], of any float dtype and unit stride: [S] float32.

    Its order of summation depends on the vocabulary alone, unlike that of torch.logsumexp, which depends on
    the number of rows.
    """
    num_rows, vocab = logits.shape
    splits = triton.cdiv(vocab, SPLIT.value)
    stats = torch.empty((num_rows, 2, splits), dtype=torch.float32, device=logits.device)
    totals = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if num_rows:
        # As `scan` and `report` are launched: warps are part of the order of summation.
        _shares[(splits, num_rows)](
            logits, logits.stride(0), stats, vocab, splits, num_warps=8, maxnreg=64, enable_fp_fusion=False
        )
        padded = triton.next_power_of_2(splits)
        _totals[(num_rows,)](stats, totals, splits, padded, num_warps=4, enable_fp_fusion=False)
    return totals


@triton.jit  # type: ignore[untyped-decorator]
def _shares(logits_ptr, stride, stats_ptr, vocab: tl.constexpr, splits: tl.constexpr):  # type: ignore[no-untyped-def]
    split, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = columns_of(split)
    raw = tl.load(logits_ptr + row * stride + column, mask=column < vocab, other=-float("inf"))
    raw = raw.to(tl.float32)
    top, share = share_of(raw, lanes_max(raw))
    tl.store(stats_ptr + row * 2 * splits + split, top)
    tl.store(stats_ptr + row * 2 * splits + splits + split, share)


@triton.jit  # type: ignore[untyped-decorator]
def _totals(stats_ptr, totals_ptr, splits: tl.constexpr, padded: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, padded)
    exists = split < splits
    highest = tl.load(stats_ptr + row * 2 * splits + split, mask=exists, other=-float("inf"))
    shares = tl.load(stats_ptr + row * 2 * splits + splits + split, mask=exists, other=0.0)
    tl.store(totals_ptr + row, total_of(highest, shares))
