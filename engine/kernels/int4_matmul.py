"""Products with weights of 4-bit integers, of one matrix or of experts; see grouped_matmul.py for the tiles.

Each byte holds two weights of a group: one of its first half in the low bits, one of its second in the high.
So the columns of either half are contiguous, and a group is two products.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from engine.kernels.grouped_matmul import locate_tile

__all__ = ["int4_matmul"]

_SWIZZLE: Final = 8


def int4_matmul(
    x: torch.Tensor,
    packed: torch.Tensor,
    zero: torch.Tensor,
    scale: torch.Tensor,
    *,
    starts: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
    per_token: int = 1,
) -> torch.Tensor:
    """`x` [R, K] times the transposed weight of each row's expert: [P, N] in the dtype of `x`.

    `packed` [E, N, K / 2] uint8; `zero` and `scale` [E, N, K / g] float32, with g 32, 64 or 128.
    `starts`, `order` and `per_token`: as in `grouped_matmul`. Sums are in float32.
    """
    num_experts, num_features, half = packed.shape
    depth, groups = 2 * half, scale.shape[2]
    num_rows = len(x) if order is None else len(order)
    out = torch.empty((num_rows, num_features), dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    rows = num_rows / num_experts
    tile_rows = 16 if rows <= 16 else 32 if rows <= 32 else 64
    tile_features = 32 if num_rows * num_features < 132 * 16 * 64 else 128
    row_tiles = triton.cdiv(num_rows, tile_rows)
    if starts is not None:
        row_tiles = min(num_rows, row_tiles + num_experts)
    _int4_matmul[(row_tiles * triton.cdiv(num_features, tile_features),)](
        x,
        packed,
        zero,
        scale,
        out,
        x if starts is None else starts,
        x if order is None else order,
        num_rows,
        row_tiles,
        num_features=num_features,
        depth=depth,
        groups=groups,
        width=depth // groups,
        num_experts=num_experts,
        columns=triton.next_power_of_2(num_experts),
        per_token=per_token,
        grouped=starts is not None,
        gathered=order is not None,
        tile_rows=tile_rows,
        tile_features=tile_features,
        swizzle=_SWIZZLE,
        num_warps=4,
        num_stages=4,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _int4_matmul(  # type: ignore[no-untyped-def]
    x_ptr,
    packed_ptr,
    zero_ptr,
    scale_ptr,
    out_ptr,
    starts_ptr,
    order_ptr,
    num_rows,
    row_tiles,
    num_features: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    num_experts: tl.constexpr,
    columns: tl.constexpr,
    per_token: tl.constexpr,
    grouped: tl.constexpr,
    gathered: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_features: tl.constexpr,
    swizzle: tl.constexpr,
):
    feature_tiles: tl.constexpr = (num_features + tile_features - 1) // tile_features
    half: tl.constexpr = width // 2
    tile = tl.program_id(0)
    band = tile // (swizzle * feature_tiles)
    height = min(row_tiles - band * swizzle, swizzle)
    row_tile = band * swizzle + (tile % (swizzle * feature_tiles)) % height
    feature_tile = (tile % (swizzle * feature_tiles)) // height
    chosen, first, end = locate_tile(starts_ptr, row_tile, num_rows, num_experts, columns, tile_rows, grouped)
    if first >= end:
        return
    row = first + tl.arange(0, tile_rows)
    inside = row < end
    source = row.to(tl.int64)
    if gathered:
        source = (tl.load(order_ptr + row, mask=inside, other=0) // per_token).to(tl.int64)
    feature = feature_tile * tile_features + tl.arange(0, tile_features)
    present = feature < num_features
    k = tl.arange(0, half)
    x_ptrs = x_ptr + source[:, None] * depth + k[None, :]
    packed_ptrs = packed_ptr + (chosen * num_features + feature[None, :]) * (depth // 2) + k[:, None]
    of_group = (chosen * num_features + feature) * groups
    total = tl.zeros([tile_rows, tile_features], dtype=tl.float32)
    for group in range(groups):
        both = tl.load(packed_ptrs + group * half, mask=present[None, :], other=0)
        zero = tl.load(zero_ptr + of_group + group, mask=present, other=0.0)[None, :]
        scale = tl.load(scale_ptr + of_group + group, mask=present, other=0.0)[None, :]
        low = tl.load(x_ptrs + group * width, mask=inside[:, None], other=0.0)
        high = tl.load(x_ptrs + group * width + half, mask=inside[:, None], other=0.0)
        of_low = (((both & 15).to(tl.float32) - zero) * scale).to(low.dtype)
        of_high = (((both >> 4).to(tl.float32) - zero) * scale).to(low.dtype)
        total = tl.dot(low, of_low, total)
        total = tl.dot(high, of_high, total)
    out_ptrs = out_ptr + row[:, None].to(tl.int64) * num_features + feature[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=inside[:, None] & present[None, :])
