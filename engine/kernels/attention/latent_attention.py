"""Paged attention over latents (MLA): all heads of a token read one row, whose beginning is also the value.

The rows of a thread block are heads of one token, for a decode, or of consecutive tokens of a chunk. Contexts
of decodes are split into parts, whose results a second launch merges in a fixed order: one part of 16 heads
is 32 KiB of them, too much for the last block to merge alone. (Flash-Decoding, Dao et al. 2023; absorbed
latents, DeepSeek-V2, 2024.)
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from engine.core.batch.decode_plan import DecodePlan
from engine.kernels.attention.decode_attention import DecodeWorkspace

CHUNK_ROWS: Final = 64
"""Pairs of a token and a head in a thread block of a chunk."""
_FEWEST_ROWS: Final = 16
"""Smallest number of rows for tensor cores."""
_MOST_HEADS: Final = 64
_TILE: Final = 32
"""Tokens of context at once."""
_STAGES: Final = 3
_MERGED_FEATURES: Final = 128
_LOG2_E: Final = tl.constexpr(1.4426950408889634)


class LatentShape(NamedTuple):
    """Features of a stored row: first the latent, then the rotated part of the key."""

    rank: int
    rotated: int


class ChunkPlan(NamedTuple):
    """The thread blocks of R chunks: int32 tensors."""

    owners: torch.Tensor
    """[P]: the chunk of each block, in the order in which to launch them."""
    indices: torch.Tensor
    """[P]: which `CHUNK_ROWS` rows of its chunk, token by token."""
    query_indptr: torch.Tensor
    """[R + 1]"""
    page_indptr: torch.Tensor
    """[R + 1]: where a chunk's pages begin in `pages`."""
    last_page_lens: torch.Tensor
    """[R]: tokens in the last page of each context."""
    pages: torch.Tensor


def suits(shape: LatentShape) -> bool:
    """Whether the kernels support rows of this shape."""
    powers = all(size >= _FEWEST_ROWS and size & (size - 1) == 0 for size in shape)
    return powers and (shape.rank + shape.rotated) % 32 == 0


def decode_blocks(heads: int) -> int:
    """Thread blocks for each part of a context."""
    blocks: int = triton.cdiv(heads, _MOST_HEADS)
    return blocks


def attend_decodes(
    q: torch.Tensor,
    pages: torch.Tensor,
    plan: DecodePlan[torch.Tensor],
    workspace: DecodeWorkspace,
    out: torch.Tensor,
    *,
    shape: LatentShape,
    scale: float,
) -> None:
    """Attend with one token of each request, q `[R, heads, rank + rotated]`; into `out` `[R, heads, rank]`.

    `pages`: one layer of the pool, `[page, 2, 1, token, (rank + rotated) / 2]`. Tokens of q and `out` may
    have any stride.
    """
    heads = q.shape[1]
    rows = max(_FEWEST_ROWS, min(_MOST_HEADS, triton.next_power_of_2(heads)))
    num_parts = len(plan.owners)
    _attend[(triton.cdiv(heads, rows), num_parts)](
        q,
        pages,
        out,
        plan.owners,
        plan.indices,
        plan.first_parts,
        plan.part_tokens,
        plan.first_parts,
        plan.page_indptr,
        plan.last_page_lens,
        plan.pages,
        workspace.results,
        workspace.scores,
        scale * _LOG2_E.value,
        q.stride(0),
        out.stride(0),
        pages.stride(0),
        pages.stride(1),
        heads=heads,
        rows=rows,
        page_size=pages.shape[3],
        rank=shape.rank,
        rotated=shape.rotated,
        tile=_TILE,
        stages=_STAGES,
        chunked=False,
        num_warps=4 if rows < _MOST_HEADS else 8,
    )
    if num_parts == len(q):
        return  # no context is split
    features = min(shape.rank, _MERGED_FEATURES)
    _merge[(len(q), heads, triton.cdiv(shape.rank, features))](
        plan.first_parts,
        workspace.results,
        workspace.scores,
        out,
        out.stride(0),
        heads=heads,
        rank=shape.rank,
        features=features,
        at_once=16,
        num_warps=4,
    )


def attend_chunks(
    q: torch.Tensor,
    pages: torch.Tensor,
    plan: ChunkPlan,
    out: torch.Tensor,
    *,
    shape: LatentShape,
    scale: float,
) -> None:
    """The same for chunks of several tokens, causally: q `[T, heads, rank + rotated]`."""
    _attend[(1, len(plan.owners))](
        q,
        pages,
        out,
        plan.owners,
        plan.indices,
        plan.indices,
        plan.indices,
        plan.query_indptr,
        plan.page_indptr,
        plan.last_page_lens,
        plan.pages,
        out,
        out,
        scale * _LOG2_E.value,
        q.stride(0),
        out.stride(0),
        pages.stride(0),
        pages.stride(1),
        heads=q.shape[1],
        rows=CHUNK_ROWS,
        page_size=pages.shape[3],
        rank=shape.rank,
        rotated=shape.rotated,
        tile=_TILE,
        stages=_STAGES,
        chunked=True,
        num_warps=8,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    q_ptr,
    pages_ptr,
    out_ptr,
    owners_ptr,
    indices_ptr,
    first_parts_ptr,
    part_tokens_ptr,
    query_indptr_ptr,
    page_indptr_ptr,
    last_page_lens_ptr,
    page_ids_ptr,
    results_ptr,
    scores_ptr,
    scale,
    q_stride,
    out_stride,
    page_stride,
    half_stride,
    heads: tl.constexpr,
    rows: tl.constexpr,
    page_size: tl.constexpr,
    rank: tl.constexpr,
    rotated: tl.constexpr,
    tile: tl.constexpr,
    stages: tl.constexpr,
    chunked: tl.constexpr,
):
    # Scores are base-2 logarithms.
    size: tl.constexpr = rank + rotated
    half: tl.constexpr = size // 2
    owner = tl.load(owners_ptr + tl.program_id(1))
    if owner < 0:
        return
    index = tl.load(indices_ptr + tl.program_id(1))
    first_page = tl.load(page_indptr_ptr + owner)
    num_pages = tl.load(page_indptr_ptr + owner + 1) - first_page
    context = (num_pages - 1) * page_size + tl.load(last_page_lens_ptr + owner)
    if chunked:
        first_token = tl.load(query_indptr_ptr + owner)
        num_tokens = tl.load(query_indptr_ptr + owner + 1) - first_token
        row = index * rows + tl.arange(0, rows)
        last_token = tl.minimum((index * rows + rows - 1) // heads, num_tokens - 1)
        begin = 0
        end = context - num_tokens + last_token + 1
    else:
        first_token = owner
        num_tokens = 1
        row = tl.program_id(0) * rows + tl.arange(0, rows)
        part_tokens = tl.load(part_tokens_ptr)
        begin = index * part_tokens
        end = tl.minimum(begin + part_tokens, context)
    token = row // heads
    own = token < num_tokens
    seen = context - num_tokens + token
    query = (first_token + token).to(tl.int64) * q_stride + (row % heads) * size
    feature = tl.arange(0, rank)
    q = tl.load(q_ptr + query[:, None] + feature[None, :], mask=own[:, None], other=0.0)
    behind = rank + tl.arange(0, rotated)
    q_rotated = tl.load(q_ptr + query[:, None] + behind[None, :], mask=own[:, None], other=0.0)

    # A row is stored in two halves. Each aligned group of features is contiguous, as both begin with one.
    places = feature + tl.where(feature >= half, half_stride - half, 0)
    places = tl.max_contiguous(tl.multiple_of(places, 16), 16)
    rotated_places = behind + (half_stride - half)
    highest = tl.full((rows,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((rows,), dtype=tl.float32)
    sums = tl.zeros((rows, rank), dtype=tl.float32)
    for start in tl.range(begin, end, tile, num_stages=stages):
        position = start + tl.arange(0, tile)
        inside = position < end
        page = tl.load(page_ids_ptr + first_page + position // page_size, mask=inside, other=0)
        at = page.to(tl.int64) * page_stride + (position % page_size) * half
        # Memory past the end of the context is undefined and may be NaN.
        latents = tl.load(pages_ptr + at[:, None] + places[None, :], mask=inside[:, None], other=0.0)
        keys = tl.load(pages_ptr + at[:, None] + rotated_places[None, :], mask=inside[:, None], other=0.0)
        scores = tl.dot(q, latents.T)
        scores = tl.dot(q_rotated, keys.T, scores) * scale
        visible = inside[None, :]
        if chunked:
            visible = visible & (position[None, :] <= seen[:, None])
        scores = tl.where(visible, scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        shares = tl.exp2(scores - higher[:, None])
        faded = tl.exp2(highest - higher)
        total = total * faded + tl.sum(shares, axis=1)
        sums = tl.dot(shares.to(latents.dtype), latents, sums * faded[:, None])
        highest = higher

    result = sums / total[:, None]
    target = (row % heads)[:, None] * rank + feature[None, :]
    outs = out_ptr + (first_token + token).to(tl.int64)[:, None] * out_stride + target
    if chunked:
        tl.store(outs, result.to(out_ptr.dtype.element_ty), mask=own[:, None])
    else:
        first_part = tl.load(first_parts_ptr + owner)
        if tl.load(first_parts_ptr + owner + 1) - first_part == 1:
            tl.store(outs, result.to(out_ptr.dtype.element_ty), mask=own[:, None])
        else:
            part = (first_part + index).to(tl.int64) * heads
            tl.store(results_ptr + part * rank + target, result, mask=own[:, None])
            tl.store(scores_ptr + part + row, highest + tl.log2(total), mask=own)


@triton.jit  # type: ignore[untyped-decorator]
def _merge(  # type: ignore[no-untyped-def]
    first_parts_ptr,
    results_ptr,
    scores_ptr,
    out_ptr,
    out_stride,
    heads: tl.constexpr,
    rank: tl.constexpr,
    features: tl.constexpr,
    at_once: tl.constexpr,
):
    """Results of a context's parts for one head, weighted by their scores."""
    owner = tl.program_id(0)
    head = tl.program_id(1)
    feature = tl.program_id(2) * features + tl.arange(0, features)
    first_part = tl.load(first_parts_ptr + owner)
    num_parts = tl.load(first_parts_ptr + owner + 1) - first_part
    if num_parts == 1:
        return
    highest = -float("inf")
    total = 0.0
    sums = tl.zeros((features,), dtype=tl.float32)
    for first in tl.range(0, num_parts, at_once):
        index = first + tl.arange(0, at_once)
        inside = index < num_parts
        place = (first_part + index).to(tl.int64) * heads + head
        score = tl.load(scores_ptr + place, mask=inside, other=-float("inf"))
        result = tl.load(
            results_ptr + place[:, None] * rank + feature[None, :], mask=inside[:, None], other=0.0
        )
        higher = tl.maximum(highest, tl.max(score, axis=0))
        weight = tl.exp2(score - higher)
        faded = tl.exp2(highest - higher)
        total = total * faded + tl.sum(weight, axis=0)
        sums = sums * faded + tl.sum(weight[:, None] * result, axis=0)
        highest = higher
    target = out_ptr + owner.to(tl.int64) * out_stride + head * rank + feature
    tl.store(target, (sums / total).to(out_ptr.dtype.element_ty))
