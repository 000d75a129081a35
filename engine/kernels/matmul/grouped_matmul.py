"""Matrix products of rows with the matrices of their experts, in one launch and without the host."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.matmul.expert_tiles import SWIZZLE, place_of, row_tiles, rows_of

BLOCK: Final = 128
"""Features of a row, and rows and columns of a weight, that share a scale in `ProductScaling.BLOCKS`."""


class ProductScaling(IntEnum):
    """What the products of 8-bit values are multiplied with."""

    NONE = 0
    ROWS = 1
    """A scale for each row of activations, and one for each row of a weight."""
    BLOCKS = 2
    """A scale for each block of a row of activations, and one for each square block of a weight."""


class _Tiling(NamedTuple):
    rows: int
    features: int
    depth: int
    warps: int
    stages: int


def grouped_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    dtype: torch.dtype,
    *,
    starts: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
    per_token: int = 1,
    scaling: ProductScaling = ProductScaling.NONE,
    x_scale: torch.Tensor | None = None,
    weight_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """`x` [R, K] times the transposed `weight` [E, N, K] of each row's expert: [P, N] in `dtype`.

    `starts` [E + 1] int32: rows starts[e] to starts[e + 1] of the result are of expert e, and those after
    starts[E] undefined; None for one expert. `order` [P]: the result's row i is computed from row
    order[i] // per_token of `x`; None: from row i. Scales are float32: of `x` [R] or [R, K / 128],
    of `weight` [E, N] or [E, N / 128, K / 128]. Sums are in float32.
    """
    num_experts, num_features, depth = weight.shape
    num_rows = len(x) if order is None else len(order)
    out = torch.empty((num_rows, num_features), dtype=dtype, device=x.device)
    if not num_rows:
        return out
    tiling = _tiling(num_rows, num_experts, x.element_size())
    tiles = row_tiles(num_rows, num_experts, starts, tiling.rows)
    _grouped_matmul[(tiles * triton.cdiv(num_features, tiling.features),)](
        x,
        weight,
        out,
        x if starts is None else starts,
        x if order is None else order,
        x if x_scale is None else x_scale,
        x if weight_scale is None else weight_scale,
        num_rows,
        tiles,
        0 if x_scale is None else x_scale.stride(0),
        0 if x_scale is None else x_scale.stride(-1),
        num_features=num_features,
        depth=depth,
        num_experts=num_experts,
        columns=triton.next_power_of_2(num_experts),
        per_token=per_token,
        grouped=starts is not None,
        gathered=order is not None,
        scaling=int(scaling),
        block=BLOCK,
        tile_rows=tiling.rows,
        tile_features=tiling.features,
        tile_depth=tiling.depth,
        swizzle=SWIZZLE,
        even=depth % tiling.depth == 0,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return out


def _tiling(num_rows: int, num_experts: int, size: int) -> _Tiling:
    """Tiling by the average rows of an expert: few rows read weights, many are bound by arithmetic.

    `size`: bytes of a value. Chosen on an H200 with the shape of Qwen3-30B-A3B.
    """
    rows = num_rows / num_experts
    if rows <= 16:
        return _Tiling(rows=16, features=64, depth=128, warps=4, stages=3)
    if size == 1:
        return _Tiling(rows=64, features=128, depth=128, warps=4, stages=3)
    if rows <= 96:
        return _Tiling(rows=64, features=128, depth=64, warps=4, stages=3)
    return _Tiling(rows=128, features=256, depth=64, warps=8, stages=4)


@triton.jit(do_not_specialize=["num_rows", "row_tiles"])  # type: ignore[untyped-decorator]
def _grouped_matmul(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    out_ptr,
    starts_ptr,
    order_ptr,
    x_scale_ptr,
    weight_scale_ptr,
    num_rows,
    row_tiles,
    x_scale_row,
    x_scale_group,
    num_features: tl.constexpr,
    depth: tl.constexpr,
    num_experts: tl.constexpr,
    columns: tl.constexpr,
    per_token: tl.constexpr,
    grouped: tl.constexpr,
    gathered: tl.constexpr,
    scaling: tl.constexpr,
    block: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_features: tl.constexpr,
    tile_depth: tl.constexpr,
    swizzle: tl.constexpr,
    even: tl.constexpr,
):
    feature_tiles: tl.constexpr = (num_features + tile_features - 1) // tile_features
    row_tile, feature_tile = place_of(tl.program_id(0), row_tiles, feature_tiles, swizzle)
    chosen, first, end, source = rows_of(
        starts_ptr,
        order_ptr,
        row_tile,
        num_rows,
        num_experts,
        columns,
        per_token,
        grouped,
        gathered,
        tile_rows,
    )
    if first >= end:
        return
    row = first + tl.arange(0, tile_rows)
    inside = row < end
    feature = feature_tile * tile_features + tl.arange(0, tile_features)
    present = feature < num_features
    k = tl.arange(0, tile_depth)
    x_ptrs = x_ptr + source[:, None] * depth + k[None, :]
    weight_ptrs = weight_ptr + (chosen * num_features + feature[None, :]) * depth + k[:, None]
    blocks: tl.constexpr = (depth + block - 1) // block
    feature_blocks: tl.constexpr = (num_features + block - 1) // block
    # A tile lies within one block of features.
    weight_scales = (
        weight_scale_ptr + (chosen * feature_blocks + feature_tile * tile_features // block) * blocks
    )
    total = tl.zeros([tile_rows, tile_features], dtype=tl.float32)
    for start in range(0, depth, tile_depth):
        if even:
            a = tl.load(x_ptrs + start, mask=inside[:, None], other=0.0)
            b = tl.load(weight_ptrs + start, mask=present[None, :], other=0.0)
        else:
            left = k < depth - start
            a = tl.load(x_ptrs + start, mask=inside[:, None] & left[None, :], other=0.0)
            b = tl.load(weight_ptrs + start, mask=present[None, :] & left[:, None], other=0.0)
        if scaling == 2:
            of_x = tl.load(
                x_scale_ptr + source * x_scale_row + start // block * x_scale_group, mask=inside, other=0.0
            )
            of_weight = tl.load(weight_scales + start // block)
            total += tl.dot(a, b) * (of_x * of_weight)[:, None]
        else:
            total = tl.dot(a, b, total)
    if scaling == 1:
        of_x = tl.load(x_scale_ptr + source, mask=inside, other=0.0)
        of_weight = tl.load(weight_scale_ptr + chosen * num_features + feature, mask=present, other=0.0)
        total *= of_x[:, None] * of_weight[None, :]
    out_ptrs = out_ptr + row[:, None].to(tl.int64) * num_features + feature[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=inside[:, None] & present[None, :])
