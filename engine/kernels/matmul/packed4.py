"""Products with 4-bit integers, of one matrix or of experts; expert_tiles.py has the tiles.

Each byte holds two weights of a group: one of its first half in the low bits, one of its second in the high.
So the columns of either half are contiguous, and a group is two products.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.matmul.codes4 import INTERPRETED, unpacked, value, zero_value
from engine.kernels.matmul.expert_tiles import SWIZZLE, place_of, row_tiles, rows_of

_SMALL: Final = 2 * 132 * 64
"""Features below which tiles of 64 leave an H200's 132 multiprocessors fewer than two each."""


class _Tiling(NamedTuple):
    """Tile sizes of `packed4_matmul`."""

    rows: int
    features: int
    depth: int
    """Bytes of a weight's row that are expanded at once."""
    warps: int
    stages: int


class Packed4(NamedTuple):
    """Matrices [E, N, K] of 4-bit values in groups of 32, 64 or 128 columns."""

    codes: torch.Tensor
    """[E, N, K / 2] uint8"""
    scale: torch.Tensor
    """[E, N, K / g]"""
    zero: torch.Tensor
    """[E, N, K / g] uint8: the code of the value 0."""

    @property
    def width(self) -> int:
        """Columns of a group."""
        return 2 * self.codes.shape[2] // self.scale.shape[2]


def packed4_matmul(
    x: torch.Tensor,
    packed: Packed4,
    *,
    starts: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
    per_token: int = 1,
) -> torch.Tensor:
    """`x` [R, K] times the transposed weight of each row's expert: [P, N] in the dtype of `x`.

    `starts`, `order` and `per_token`: as in `grouped_matmul`. Sums are in float32.
    """
    num_experts, num_features, half = packed.codes.shape
    num_rows = len(x) if order is None else len(order)
    out = torch.empty((num_rows, num_features), dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    tiling = _tiling(num_rows, num_features, num_experts)
    tiles = row_tiles(num_rows, num_experts, starts, tiling.rows)
    half_width = packed.width // 2
    _matmul[(tiles * triton.cdiv(num_features, tiling.features),)](
        x,
        packed.codes,
        packed.scale,
        packed.zero,
        out,
        x if starts is None else starts,
        x if order is None else order,
        num_rows,
        tiles,
        num_features=num_features,
        depth=2 * half,
        groups=packed.scale.shape[2],
        width=packed.width,
        at_once=max(1, tiling.depth // half_width),
        num_experts=num_experts,
        columns=triton.next_power_of_2(num_experts),
        per_token=per_token,
        grouped=starts is not None,
        gathered=order is not None,
        tile_rows=tiling.rows,
        tile_features=tiling.features,
        swizzle=SWIZZLE,
        assembly=not INTERPRETED,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return out


def _tiling(num_rows: int, num_features: int, num_experts: int) -> _Tiling:
    """The fastest that were tried on an H200 with the shapes of Llama-3.1-8B.

    Few rows are bound by expanding weights, which a tile of more rows does once for all of them.
    """
    rows = num_rows / num_experts
    if rows > 256:
        return _Tiling(rows=128, features=64, depth=64, warps=4, stages=3)
    if rows > 96:
        return _Tiling(rows=64, features=64, depth=64, warps=4, stages=3)
    if rows > 16:
        return _Tiling(rows=32, features=64, depth=128, warps=4, stages=3)
    if min(num_rows, num_experts) * num_features < _SMALL:
        return _Tiling(rows=16, features=32, depth=128, warps=4, stages=4)
    return _Tiling(rows=16, features=64, depth=128, warps=4, stages=3)


def expand(packed: Packed4, features: slice, out: torch.Tensor) -> None:
    """Write the weights of `features` of one matrix to `out` [n, K]."""
    codes, scale, zero = (part[0, features] for part in packed)
    half = codes.shape[1]
    tile_groups = triton.next_power_of_2(min(scale.shape[1], 1024 // (packed.width // 2)))
    grid = (len(codes), triton.cdiv(scale.shape[1], tile_groups))
    _expand[grid](
        codes,
        scale,
        zero,
        out,
        half_depth=half,
        groups=scale.shape[1],
        width=packed.width,
        tile_groups=tile_groups,
        num_warps=4,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _spread(of_groups, half: tl.constexpr):  # type: ignore[no-untyped-def]
    """[N, G], a number of each group, for each of its codes: [N, G * half]."""
    rows: tl.constexpr = of_groups.shape[0]
    groups: tl.constexpr = of_groups.shape[1]
    return tl.broadcast_to(of_groups[:, :, None], (rows, groups, half)).reshape(rows, groups * half)


@triton.jit(do_not_specialize=["num_rows", "row_tiles"])  # type: ignore[untyped-decorator]
def _matmul(  # type: ignore[no-untyped-def]
    x_ptr,
    codes_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    starts_ptr,
    order_ptr,
    num_rows,
    row_tiles,
    num_features: tl.constexpr,
    depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    at_once: tl.constexpr,
    num_experts: tl.constexpr,
    columns: tl.constexpr,
    per_token: tl.constexpr,
    grouped: tl.constexpr,
    gathered: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_features: tl.constexpr,
    swizzle: tl.constexpr,
    assembly: tl.constexpr,
):
    """The weight is the left factor, so that its values go from registers to the tensor cores."""
    feature_tiles: tl.constexpr = (num_features + tile_features - 1) // tile_features
    half: tl.constexpr = width // 2
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
    inside = (row < end)[None, :]
    feature = feature_tile * tile_features + tl.arange(0, tile_features)
    present = (feature < num_features)[:, None]
    # Codes of consecutive groups are contiguous; the columns of their values are so within half a group.
    k = tl.arange(0, at_once * half)
    column = tl.max_contiguous(tl.multiple_of(k // half * width + k % half, half), half)
    group = tl.arange(0, at_once)
    of_feature = (chosen * num_features + feature)[:, None]
    x_ptrs = x_ptr + source[None, :] * depth + column[:, None]
    codes_ptrs = codes_ptr + of_feature * (depth // 2) + k[None, :]
    of_group = of_feature * groups + group[None, :]
    total = tl.zeros([tile_features, tile_rows], dtype=tl.float32)
    for start in range(0, groups, at_once):
        left = k < (groups - start) * half
        known = present & (group < groups - start)[None, :]
        both = tl.load(codes_ptrs + start * half, mask=present & left[None, :], other=0)
        zero = tl.load(zero_ptr + of_group + start, mask=known, other=0)
        scale = tl.load(scale_ptr + of_group + start, mask=known, other=0)
        of_low, of_high, zero, scale = unpacked(both, zero, scale, x_ptr.dtype.element_ty, assembly)
        zero, scale = _spread(zero, half), _spread(scale, half)
        here = left[:, None] & inside
        low = tl.load(x_ptrs + start * width, mask=here, other=0.0)
        high = tl.load(x_ptrs + start * width + half, mask=here, other=0.0)
        total = tl.dot(((of_low - zero) * scale).to(low.dtype), low, total)
        total = tl.dot(((of_high - zero) * scale).to(low.dtype), high, total)
    out_ptrs = out_ptr + row[None, :].to(tl.int64) * num_features + feature[:, None]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=present & inside)


@triton.jit  # type: ignore[untyped-decorator]
def _expand(  # type: ignore[no-untyped-def]
    codes_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    half_depth: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    tile_groups: tl.constexpr,
):
    half: tl.constexpr = width // 2
    feature = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * tile_groups + tl.arange(0, tile_groups)
    present = group < groups
    k = tl.arange(0, half)
    both = tl.load(
        codes_ptr + feature * half_depth + group[:, None] * half + k[None, :], mask=present[:, None], other=0
    )
    low, high = value(both & 15), value(both >> 4)
    of_group = feature * groups + group
    zero = zero_value(tl.load(zero_ptr + of_group, mask=present, other=0))[:, None]
    scale = tl.load(scale_ptr + of_group, mask=present, other=0).to(tl.float32)[:, None]
    place = out_ptr + feature * 2 * half_depth + group[:, None] * width + k[None, :]
    dtype = out_ptr.dtype.element_ty
    tl.store(place, ((low - zero) * scale).to(dtype), mask=present[:, None])
    tl.store(place + half, ((high - zero) * scale).to(dtype), mask=present[:, None])
