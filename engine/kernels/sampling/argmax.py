"""The most likely token of each row, and whether the row is finite, in one pass over the vocabulary."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def greedy_sample(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row of `logits` [S, vocab]: index of its largest entry, the first of equals, as [S] int64; and
    whether all its entries are finite, as [S] bool. Where they are not, the index is undefined, but in range.
    """
    num_rows, vocab = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    finite = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    _greedy_sample[(num_rows,)](
        logits, tokens, finite, logits.stride(0), vocab=vocab, block=8192, num_warps=16
    )
    return tokens, finite


@triton.jit  # type: ignore[untyped-decorator]
def _greedy_sample(  # type: ignore[no-untyped-def]
    logits_ptr, tokens_ptr, finite_ptr, stride, vocab: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, block)
    best = tl.full((block,), -float("inf"), dtype=tl.float32)
    where = tl.zeros((block,), dtype=tl.int32)
    broken = tl.zeros((block,), dtype=tl.int32)
    for start in tl.range(0, vocab, block):
        column = start + lane
        inside = column < vocab
        value = tl.load(logits_ptr + row * stride + column, mask=inside, other=0.0).to(tl.float32)
        broken |= (tl.abs(value) < float("inf")).to(tl.int32) ^ 1
        better = inside & (value > best)
        best = tl.where(better, value, best)
        where = tl.where(better, column, where)
    top = tl.max(best, axis=0)
    first = tl.min(tl.where(best == top, where, vocab - 1), axis=0)
    tl.store(tokens_ptr + row, first.to(tl.int64))
    tl.store(finite_ptr + row, tl.max(broken, axis=0) == 0)
