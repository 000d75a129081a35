"""Products of a few rows with 4-bit integers: a decode's linear layers, bound by unpacking the weights.

As in few_rows.py, the warps of a program share the columns of its weights, and tensor cores multiply 8 rows
in the time of one. They take a third of the instructions a weight that products of single values take.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.matmul.codes4 import INTERPRETED, ones, unpacked
from engine.kernels.matmul.packed4 import Packed4
from engine.kernels.pdl import pdl_wait, supports_pdl

_MOST_ROWS: Final = 16
_WIDE: Final = 8192
"""Features above which tiles of packed4.py multiply more than 8 rows faster."""
_BYTES: Final = 64
"""Bytes of a row's codes that a warp unpacks at once: a group of 128 columns, or several narrower ones."""


class _Tiling(NamedTuple):
    features: int
    """Rows of the weight that a program multiplies."""
    warps: int
    stages: int


def suits(x: torch.Tensor, packed: Packed4) -> bool:
    """Whether `packed4_few_rows` supports these."""
    experts, features, half = packed.codes.shape
    fits = half % _BYTES == 0 and features % 32 == 0
    most = 8 if features > _WIDE else _MOST_ROWS
    return len(x) <= most and experts == 1 and fits and x.dtype != torch.float32


def packed4_few_rows(x: torch.Tensor, packed: Packed4, bias: torch.Tensor | None) -> torch.Tensor:
    """`x` [R, K], R <= 8, times the transposed matrix, plus `bias` [N]: [R, N]; sums are in float32."""
    _, num_features, half = packed.codes.shape
    out = torch.empty((len(x), num_features), dtype=x.dtype, device=x.device)
    if not len(x):
        return out
    tiling = _tiling(num_features, 2 * half)
    use_pdl = supports_pdl(x.device)
    _few_rows[(num_features // tiling.features,)](
        x,
        packed.codes,
        packed.scale,
        packed.zero,
        out if bias is None else bias,
        out,
        len(x),
        num_features=num_features,
        half_depth=half,
        width=packed.width,
        has_bias=bias is not None,
        at_once=2 * _BYTES // packed.width,
        tile_features=tiling.features,
        tile_rows=8 if len(x) <= 8 else 16,
        parts=tiling.warps,
        stages=tiling.stages,
        use_pdl=use_pdl,
        assembly=not INTERPRETED,
        num_warps=tiling.warps,
        launch_pdl=use_pdl,
    )
    return out


def _tiling(features: int, columns: int) -> _Tiling:
    """The fastest that were tried on an H200 with the shapes of Llama-3.1-8B."""
    if columns > 8192:
        return _Tiling(32, 8, 3)
    return _Tiling(16, 4, 4 if features > _WIDE else 6)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _few_rows(  # type: ignore[no-untyped-def]
    x_ptr,
    codes_ptr,
    scale_ptr,
    zero_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_features: tl.constexpr,
    half_depth: tl.constexpr,
    width: tl.constexpr,
    has_bias: tl.constexpr,
    at_once: tl.constexpr,
    tile_features: tl.constexpr,
    tile_rows: tl.constexpr,
    parts: tl.constexpr,
    stages: tl.constexpr,
    use_pdl: tl.constexpr,
    assembly: tl.constexpr,
):
    """One product for each warp, over `at_once` of every `step` groups; their sum is taken at the end."""
    half: tl.constexpr = width // 2
    groups: tl.constexpr = half_depth // half
    depth: tl.constexpr = at_once * half
    step: tl.constexpr = parts * at_once
    feature = tl.program_id(0) * tile_features + tl.arange(0, tile_features)
    row = tl.arange(0, tile_rows)
    live = row < num_rows
    part = tl.arange(0, parts)[:, None]
    k = tl.arange(0, depth)
    # Codes of consecutive groups are contiguous; the columns of their values are so within half a group.
    column = tl.max_contiguous(tl.multiple_of(k // half * width + k % half, half), half)
    byte = part * depth + k[None, :]
    of_features = codes_ptr + feature.to(tl.int64) * half_depth
    codes = of_features[None, :, None] + byte[:, None, :]
    x_column = part * (at_once * width) + column[None, :]
    xs = x_ptr + row[None, None, :] * (2 * half_depth) + x_column[:, :, None]
    group = (part * at_once + tl.arange(0, at_once)[None, :])[:, None, :]
    of_group = feature[None, :, None] * groups + group
    # Scales and zero points are loaded a step before they are used.
    scale = tl.load(scale_ptr + of_group, mask=group < groups, other=0.0)
    zero = tl.load(zero_ptr + of_group, mask=group < groups, other=0)
    total = tl.zeros([parts, tile_features, tile_rows], dtype=tl.float32)
    pdl_wait(use_pdl)
    for start in tl.range(0, groups, step, num_stages=stages):
        if groups % step == 0:  # a mask that is always true takes instructions
            both = tl.load(codes + start * half, eviction_policy="evict_first")
            inside = live[None, None, :]
        else:
            left = byte < (groups - start) * half
            both = tl.load(codes + start * half, mask=left[:, None, :], other=0)
            inside = live[None, None, :] & left[:, :, None]
        low = tl.load(xs + start * width, mask=inside, other=0.0)
        high = tl.load(xs + start * width + half, mask=inside, other=0.0)
        further = group < groups - start - step
        next_scale = tl.load(scale_ptr + of_group + start + step, mask=further, other=0.0)
        next_zero = tl.load(zero_ptr + of_group + start + step, mask=further, other=0)
        of_low, of_high, offset, factor = unpacked(both, zero, scale, low.dtype, assembly)
        if at_once == 1:
            # The zero point applies to the sum of the group's values, which is a product with ones.
            one = ones(both, low.dtype, assembly).to(low.dtype)
            product = tl.dot(of_low.to(low.dtype), low)
            product = tl.dot(of_high.to(low.dtype), high, product)
            of_x = tl.dot(one, low)
            of_x = tl.dot(one, high, of_x)
            total += (product - offset.to(tl.float32) * of_x) * scale.to(tl.float32)
        else:
            shape: tl.constexpr = (parts, tile_features, at_once, half)
            offset = tl.broadcast_to(offset[:, :, :, None], shape).reshape(parts, tile_features, depth)
            factor = tl.broadcast_to(factor[:, :, :, None], shape).reshape(parts, tile_features, depth)
            total = tl.dot(((of_low - offset) * factor).to(low.dtype), low, total)
            total = tl.dot(((of_high - offset) * factor).to(low.dtype), high, total)
        scale = next_scale
        zero = next_zero
    result = tl.sum(total, axis=0)
    if has_bias:
        result += tl.load(bias_ptr + feature).to(tl.float32)[:, None]
    tl.store(
        out_ptr + row[None, :] * num_features + feature[:, None],
        result.to(out_ptr.dtype.element_ty),
        mask=live[None, :],
    )
