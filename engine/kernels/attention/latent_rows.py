"""Queries and the latent of each token as attention takes them: normalised, rotated, joined in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def latent_rows(
    absorbed: torch.Tensor,
    queries: torch.Tensor,
    latents: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    table: torch.Tensor,
    positions: torch.Tensor,
    *,
    interleaved: bool,
) -> torch.Tensor:
    """Rows [T, H + 1, rank + rotated]: see `Ops.latent_rows`.

    `absorbed` [T, H, rank] and `queries` [T, H, rotated] may have any strides but of features, `latents` is
    [T, rank + rotated]; `table` is a `rope_table` and `positions` [T] int64.
    """
    num_tokens, heads, rank = absorbed.shape
    rotated = queries.shape[2]
    rows = absorbed.new_empty(num_tokens, heads + 1, rank + rotated)
    if num_tokens:
        _latent_rows[(num_tokens, heads + 1)](
            absorbed,
            queries,
            latents,
            weight,
            table,
            positions,
            rows,
            eps,
            absorbed.stride(0),
            absorbed.stride(1),
            queries.stride(0),
            queries.stride(1),
            latents.stride(0),
            heads=heads,
            rank=rank,
            rank_block=triton.next_power_of_2(rank),
            half=rotated // 2,
            half_block=triton.next_power_of_2(rotated // 2),
            interleaved=interleaved,
            num_warps=2,
        )
    return rows


@triton.jit  # type: ignore[untyped-decorator]
def _latent_rows(  # type: ignore[no-untyped-def]
    absorbed_ptr,
    queries_ptr,
    latents_ptr,
    weight_ptr,
    table_ptr,
    positions_ptr,
    rows_ptr,
    eps,
    absorbed_stride,
    absorbed_head_stride,
    queries_stride,
    queries_head_stride,
    latents_stride,
    heads: tl.constexpr,
    rank: tl.constexpr,
    rank_block: tl.constexpr,
    half: tl.constexpr,
    half_block: tl.constexpr,
    interleaved: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dtype = rows_ptr.dtype.element_ty
    row = rows_ptr + (token * (heads + 1) + head) * (rank + 2 * half)
    feature = tl.arange(0, rank_block)
    inside = feature < rank
    if head < heads:
        source = absorbed_ptr + token * absorbed_stride + head * absorbed_head_stride
        tl.store(row + feature, tl.load(source + feature, mask=inside), mask=inside)
        turned = queries_ptr + token * queries_stride + head * queries_head_stride
    else:
        latent = latents_ptr + token * latents_stride
        values = tl.load(latent + feature, mask=inside, other=0.0).to(tl.float32)
        values *= tl.rsqrt(tl.sum(values * values, axis=0) / rank + eps)
        values *= tl.load(weight_ptr + feature, mask=inside, other=0.0).to(tl.float32)
        tl.store(row + feature, values.to(dtype), mask=inside)
        turned = latent + rank
    pair = tl.arange(0, half_block)
    present = pair < half
    angles = table_ptr + tl.load(positions_ptr + token) * 2 * half + pair
    cos = tl.load(angles, mask=present, other=0.0).to(tl.float32)
    sin = tl.load(angles + half, mask=present, other=0.0).to(tl.float32)
    first = turned + (2 * pair if interleaved else pair)
    a = tl.load(first, mask=present, other=0.0).to(tl.float32)
    b = tl.load(first + (1 if interleaved else half), mask=present, other=0.0).to(tl.float32)
    tl.store(row + rank + pair, (a * cos - b * sin).to(dtype), mask=present)
    tl.store(row + rank + half + pair, (b * cos + a * sin).to(dtype), mask=present)
