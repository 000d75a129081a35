"""Products of a few rows of activations with weights in 8 bits, which are bound by reading the weights.

Tensor cores multiply 8 rows in the time of one. The warps of a program share the columns of its weights. One
row alone is faster without them: matvec.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.matmul.grouped_matmul import BLOCK
from engine.kernels.pdl import pdl_wait, supports_pdl

_MOST_ROWS: Final = 16
_FEATURES: Final = 16
"""Rows of the weight that a program multiplies; this and the tilings are the fastest that were tried on an
H200 with the shapes of Llama-3.1-8B."""
_WARPS: Final = 4


class _Tiling(NamedTuple):
    depth: int
    """Columns that a warp multiplies at once."""
    stages: int


def suits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `fp8_few_rows` supports this number of rows and a weight [out, in] of this shape."""
    features, columns = weight.shape
    return len(x) <= _MOST_ROWS and columns % BLOCK == 0 and features % (2 * _FEATURES) == 0


def fp8_few_rows(
    x: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    *,
    gated: bool = False,
) -> torch.Tensor:
    """x [R, in], R <= 16, times `weight` [out, in] transposed, both e4m3, plus `bias` [out]: [R, out].

    `scale` [R] and `weight_scale` [out], or of blocks [R, in / 128] and [out / 128, in / 128], float32.
    `gated`: silu(gate) * up of the halves of the product, [R, out / 2], which are rounded to `dtype` before.
    Sums are in float32.
    """
    columns = weight.shape[1]
    features = len(weight) // 2 if gated else len(weight)
    out = torch.empty((len(x), features), dtype=dtype, device=x.device)
    if not len(x):
        return out
    blocks = scale.dim() == 2
    tiling = _Tiling(256, 3) if columns > 8192 and not blocks else _Tiling(BLOCK, 4)
    use_pdl = supports_pdl(x.device)
    _few_rows[(features // _FEATURES,)](
        x,
        scale,
        weight,
        weight_scale,
        weight if bias is None else bias,
        out,
        len(x),
        num_features=features,
        num_columns=columns,
        has_bias=bias is not None,
        gated=gated,
        blocks=blocks,
        tile_features=_FEATURES,
        tile_rows=8 if len(x) <= 8 else 16,
        parts=_WARPS,
        depth=tiling.depth,
        stages=tiling.stages,
        use_pdl=use_pdl,
        num_warps=_WARPS,
        launch_pdl=use_pdl,
    )
    return out


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _few_rows(  # type: ignore[no-untyped-def]
    x_ptr,
    scale_ptr,
    weight_ptr,
    weight_scale_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_features: tl.constexpr,
    num_columns: tl.constexpr,
    has_bias: tl.constexpr,
    gated: tl.constexpr,
    blocks: tl.constexpr,
    tile_features: tl.constexpr,
    tile_rows: tl.constexpr,
    parts: tl.constexpr,
    depth: tl.constexpr,
    stages: tl.constexpr,
    use_pdl: tl.constexpr,
):
    """One product for each warp, over its part of the columns; their sum is taken at the end."""
    feature = tl.program_id(0) * tile_features + tl.arange(0, tile_features)
    row = tl.arange(0, tile_rows)
    live = row < num_rows
    column = tl.arange(0, parts)[:, None] * depth + tl.arange(0, depth)[None, :]
    of_features = weight_ptr + feature.to(tl.int64) * num_columns
    weights = of_features[None, :, None] + column[:, None, :]
    others = weights + num_features * num_columns  # of the gated features; read only if there are any
    xs = x_ptr + row[None, None, :] * num_columns + column[:, :, None]
    total = tl.zeros([parts, tile_features, tile_rows], dtype=tl.float32)
    if gated:
        other_total = tl.zeros([parts, tile_features, tile_rows], dtype=tl.float32)
    if blocks:  # one for each warp at a time, and the same for all features of the tile
        num_blocks: tl.constexpr = num_columns // depth
        block = tl.arange(0, parts)
        x_scales = scale_ptr + row[None, :] * num_blocks + block[:, None]
        block_scales = weight_scale_ptr + tl.program_id(0) * tile_features // depth * num_blocks + block
        other_row = (num_features + tl.program_id(0) * tile_features) // depth
        other_scales = weight_scale_ptr + other_row * num_blocks + block
    pdl_wait(use_pdl)
    for start in tl.range(0, num_columns, parts * depth, num_stages=stages):
        # A mask that is always true takes instructions.
        if num_columns % (parts * depth) == 0:
            x = tl.load(xs + start, mask=live[None, None, :], other=0.0)
            weight = tl.load(weights + start, eviction_policy="evict_first")
            if gated:
                other = tl.load(others + start, eviction_policy="evict_first")
        else:
            left = column < num_columns - start
            x = tl.load(xs + start, mask=left[:, :, None] & live[None, None, :], other=0.0)
            weight = tl.load(weights + start, mask=left[:, None, :], other=0.0)
            if gated:
                other = tl.load(others + start, mask=left[:, None, :], other=0.0)
        if blocks:
            first = start // depth
            known = block < num_blocks - first
            of_x = tl.load(x_scales + first, mask=known[:, None] & live[None, :], other=0.0)
            of_weight = tl.load(block_scales + first, mask=known, other=0.0)
            total += tl.dot(weight, x) * (of_x * of_weight[:, None])[:, None, :]
            if gated:
                of_weight = tl.load(other_scales + first, mask=known, other=0.0)
                other_total += tl.dot(other, x) * (of_x * of_weight[:, None])[:, None, :]
        else:
            total = tl.dot(weight, x, total)
            if gated:
                other_total = tl.dot(other, x, other_total)
    dtype = out_ptr.dtype.element_ty
    result = tl.sum(total, axis=0)
    if gated:
        up = tl.sum(other_total, axis=0)
    if not blocks:
        scale = tl.load(scale_ptr + row, mask=live, other=0.0)[None, :]
        result *= scale * tl.load(weight_scale_ptr + feature)[:, None]
        if gated:
            up *= scale * tl.load(weight_scale_ptr + num_features + feature)[:, None]
    if has_bias:
        result += tl.load(bias_ptr + feature).to(tl.float32)[:, None]
    if gated:
        gate = result.to(dtype).to(tl.float32)
        result = gate / (1.0 + tl.exp(-gate)) * up.to(dtype).to(tl.float32)
    tl.store(out_ptr + row[None, :] * num_features + feature[:, None], result.to(dtype), mask=live[None, :])
