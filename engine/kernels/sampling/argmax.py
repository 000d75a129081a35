"""The most likely token of each row, and whether the row is finite, in one pass over the vocabulary."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from engine.kernels.pdl import pdl_wait, supports_pdl

_BLOCK: Final = 4096
_PROGRAMS: Final = 256
"""Programs of a launch. Few rows are each read by several: two for a multiprocessor of an H100 or H200."""
_MOST_PARTS: Final = 64
"""Most parts of a row."""


def greedy_sample(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row of `logits` [S, vocab]: index of its largest entry, the first of equals, as [S] int64; and
    whether all its entries are finite, as [S] bool. Where they are not, the index is undefined, but in range.
    """
    num_rows, vocab = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    finite = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    if not num_rows:
        return tokens, finite
    blocks = triton.cdiv(vocab, _BLOCK)
    parts = min(blocks, _MOST_PARTS, triton.cdiv(_PROGRAMS, num_rows))
    tops = torch.empty((num_rows, parts), dtype=torch.float32, device=logits.device)
    firsts = torch.empty((num_rows, parts), dtype=torch.int32, device=logits.device)
    use_pdl = supports_pdl(logits.device)
    _of_parts[(num_rows, parts)](
        logits,
        tops,
        firsts,
        logits.stride(0),
        triton.cdiv(blocks, parts) * _BLOCK,
        vocab=vocab,
        block=_BLOCK,
        use_pdl=use_pdl,
        num_warps=8,
        launch_pdl=use_pdl,
    )
    _of_rows[(num_rows,)](
        tops,
        firsts,
        tokens,
        finite,
        parts,
        most_parts=_MOST_PARTS,
        use_pdl=use_pdl,
        num_warps=1,
        launch_pdl=use_pdl,
    )
    return tokens, finite


# Compiled once, whatever the number of rows is.
@triton.jit(do_not_specialize=["per_part"])  # type: ignore[untyped-decorator]
def _of_parts(  # type: ignore[no-untyped-def]
    logits_ptr,
    tops_ptr,
    firsts_ptr,
    stride,
    per_part,
    vocab: tl.constexpr,
    block: tl.constexpr,
    use_pdl: tl.constexpr,
):
    """The largest entry of a part and its index; the index is -1 if an entry is not finite."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, block)
    best = tl.full((block,), -float("inf"), dtype=tl.float32)
    where = tl.zeros((block,), dtype=tl.int32)
    broken = tl.zeros((block,), dtype=tl.int32)
    pdl_wait(use_pdl)
    for start in tl.range(0, per_part, block):
        column = part * per_part + start + lane
        inside = column < vocab
        value = tl.load(logits_ptr + row * stride + column, mask=inside, other=0.0).to(tl.float32)
        broken |= (tl.abs(value) < float("inf")).to(tl.int32) ^ 1
        better = inside & (value > best)
        best = tl.where(better, value, best)
        where = tl.where(better, column, where)
    top = tl.max(best, axis=0)
    first = tl.min(tl.where(best == top, where, vocab - 1), axis=0)
    place = row * tl.num_programs(1) + part
    tl.store(tops_ptr + place, top)
    tl.store(firsts_ptr + place, tl.where(tl.max(broken, axis=0) == 0, first, -1))


@triton.jit(do_not_specialize=["parts"])  # type: ignore[untyped-decorator]
def _of_rows(  # type: ignore[no-untyped-def]
    tops_ptr,
    firsts_ptr,
    tokens_ptr,
    finite_ptr,
    parts,
    most_parts: tl.constexpr,
    use_pdl: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, most_parts)
    inside = part < parts
    pdl_wait(use_pdl)
    tops = tl.load(tops_ptr + row * parts + part, mask=inside, other=-float("inf"))
    firsts = tl.load(firsts_ptr + row * parts + part, mask=inside, other=2147483647)
    is_finite = tl.min(firsts, axis=0) >= 0
    first = tl.min(tl.where(inside & (tops == tl.max(tops, axis=0)), firsts, 2147483647), axis=0)
    tl.store(tokens_ptr + row, tl.where(is_finite, first, 0).to(tl.int64))
    tl.store(finite_ptr + row, is_finite)
