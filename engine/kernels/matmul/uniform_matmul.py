"""Matrix products whose rows do not depend on each other: a row has the same bits alone and among thousands.

Every tile shape computes an entry by the same instructions in the same order: products of 16 columns at a
time are added to a float32 accumulator by tensor cores (wgmma), from the first column of a split to its last.
The number of splits depends on the weight alone. Their sums are added in order: with few rows by the last
program of a tile to finish, with many in one program. (Split-K, and its reduction by the last program, are
those of stream-K, Osama et al. 2023, with a fixed order.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.matmul.expert_tiles import SWIZZLE, place_of
from engine.kernels.pdl import pdl_wait, supports_pdl

_UNIT: Final = 128
"""Columns of a split are a multiple of this."""
MANY_FEATURES: Final = 8192
_FEW_FEATURES: Final = 5120
"""Up to here, tiles of 64 features are too few to keep the multiprocessors busy without splits."""
_SPLITS: Final = 2
_DEEP: Final = 1024
"""Columns of a split at least."""
_MULTIPROCESSORS: Final = 132
"""Multiprocessors of an H100 or H200: it is tuned for them, and results do not depend on it."""
_BUSY: Final = 128
"""Large tiles from which on smaller ones are slower."""
_FULL: Final = 0.85
"""Share of multiprocessors that large tiles keep busy, below which smaller ones are faster."""


class Tiling(NamedTuple):
    rows: int
    features: int
    depth: int
    warps: int
    stages: int
    swapped: bool = True
    """Whether a tile's features are the rows of the instruction: those are 64, its columns 16 or more."""
    parallel: bool = False
    """Whether each split has a program of its own."""
    bulk_rows: bool = False
    """Whether tiles of rows are loaded in bulk, as those of the weight are."""


class Workspace:
    """Sums of splits. Kernels on one stream may share it."""

    def __init__(self, floats: int, tiles: int, device: torch.device) -> None:
        self.sums = torch.empty(floats, dtype=torch.float32, device=device)
        self.arrivals = torch.zeros(tiles, dtype=torch.int32, device=device)
        """Number of finished splits of each tile; reset to 0 by the last one."""


def splits_of(features: int, columns: int) -> int:
    """Splits of a weight [features, columns]. They are part of what is computed: see above."""
    return _SPLITS if features <= _FEW_FEATURES and columns >= _SPLITS * _DEEP else 1


def tiling_of(rows: int, features: int, splits: int) -> Tiling:
    """The fastest on an H200 for matrices of an 8B model."""
    if rows <= 16:
        return Tiling(16, 64, 128, 4, 5, parallel=True)
    if rows <= 64:
        height = 32 if rows <= 32 else 64
        if features > MANY_FEATURES:
            return Tiling(height, 128, 64, 4, 5, parallel=True, bulk_rows=True)
        return Tiling(height, 64, 128, 4, 4, parallel=True, bulk_rows=True)
    if rows <= 128 and features <= MANY_FEATURES:
        return Tiling(64, 128, 128, 8, 4, parallel=True, bulk_rows=True)
    large = Tiling(128, 256, 64, 8, 4, swapped=False, bulk_rows=True)
    tiles = _tiles(large, rows, features)
    waves = triton.cdiv(tiles, _MULTIPROCESSORS)
    if splits > 1 and rows <= 256:
        return Tiling(128, 128, 64, 4, 4, parallel=True, bulk_rows=True)
    if tiles < _BUSY or (splits == 1 and tiles < _FULL * waves * _MULTIPROCESSORS):
        return Tiling(128, 128, 64, 4, 3, swapped=False, parallel=True, bulk_rows=True)
    return large


def rows_of_tilings(features: int, splits: int) -> list[int]:
    """A number of rows for each of the tilings of a weight with this many features."""
    rows = (1, 17, 33, 65, 129, *range(256, _BUSY * 128 + 1, 128))
    return list({tiling_of(count, features, splits): count for count in reversed(rows)}.values())


def workspace_of(features: int, splits: int) -> tuple[int, int]:
    """Floats and tiles that the products of a weight need at most."""
    floats = tiles = 0
    for rows in (16, 32, 64, *range(128, _BUSY * 128 + 1, 128)):
        tiling = tiling_of(rows, features, splits)
        if splits == 1 or not tiling.parallel:
            break  # with more rows, one program computes all splits
        tiles = max(tiles, _tiles(tiling, rows, features))
        floats = max(floats, _tiles(tiling, rows, features) * splits * tiling.rows * tiling.features)
    return floats, tiles


def split_depth(columns: int, splits: int) -> int:
    """Columns of each split but the last."""
    return int(triton.cdiv(triton.cdiv(columns, splits), _UNIT) * _UNIT)


def _tiles(tiling: Tiling, rows: int, features: int) -> int:
    return int(triton.cdiv(rows, tiling.rows) * triton.cdiv(features, tiling.features))


def uniform_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    tiles_of_weight: Callable[[int, int], TensorDescriptor],
    bias: torch.Tensor | None,
    out: torch.Tensor,
    workspace: Workspace,
    splits: int,
    tiling: Tiling | None = None,
) -> None:
    """Write x [T, K] times `weight` [N, K] transposed, plus `bias` [N], to `out` [T, N] of any float dtype.

    Rows of x are contiguous, and all begin at multiples of 16 bytes, as K does. `tiles_of_weight`: the
    descriptor of `weight` for tiles of a size.
    """
    num_rows, columns = x.shape
    features = len(weight)
    if not num_rows:
        return
    tiling = tiling or tiling_of(num_rows, features, splits)
    row_tiles = triton.cdiv(num_rows, tiling.rows)
    parallel = tiling.parallel and splits > 1
    use_pdl = supports_pdl(x.device)
    _product[(_tiles(tiling, num_rows, features), splits if parallel else 1)](
        TensorDescriptor.from_tensor(x, [tiling.rows, tiling.depth]) if tiling.bulk_rows else x,
        tiles_of_weight(tiling.features, tiling.depth),
        weight if bias is None else bias,
        out,
        workspace.sums,
        workspace.arrivals,
        num_rows,
        features,
        columns,
        split_depth(columns, splits),
        row_tiles,
        x.stride(0),
        even=columns % tiling.depth == 0,
        splits=splits,
        parallel=parallel,
        has_bias=bias is not None,
        tile_rows=tiling.rows,
        tile_features=tiling.features,
        tile_depth=tiling.depth,
        swizzle=SWIZZLE,
        stages=tiling.stages,
        swapped=tiling.swapped,
        bulk_rows=tiling.bulk_rows,
        use_pdl=use_pdl,
        num_warps=tiling.warps,
        launch_pdl=use_pdl,
    )


@triton.jit(do_not_specialize=["num_rows", "row_tiles"])  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x_ptr,
    weights,
    bias_ptr,
    out_ptr,
    sums_ptr,
    arrivals_ptr,
    num_rows,
    num_features,
    num_columns,
    split_depth,
    row_tiles,
    x_stride,
    even: tl.constexpr,
    splits: tl.constexpr,
    parallel: tl.constexpr,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_features: tl.constexpr,
    tile_depth: tl.constexpr,
    swizzle: tl.constexpr,
    stages: tl.constexpr,
    swapped: tl.constexpr,
    bulk_rows: tl.constexpr,
    use_pdl: tl.constexpr,
):
    row_tile, feature_tile = place_of(
        tl.program_id(0), row_tiles, (num_features + tile_features - 1) // tile_features, swizzle
    )
    first_row = row_tile * tile_rows
    first_feature = feature_tile * tile_features
    row = first_row + tl.arange(0, tile_rows)
    feature = first_feature + tl.arange(0, tile_features)
    live, present = row < num_rows, feature < num_features
    if has_bias:
        bias = tl.load(bias_ptr + feature, mask=present, other=0.0).to(tl.float32)
        bias = bias[:, None] if swapped else bias[None, :]
    pdl_wait(use_pdl)
    if swapped:
        total = tl.zeros([tile_features, tile_rows], dtype=tl.float32)
        places = row[None, :].to(tl.int64) * num_features + feature[:, None]
        kept = live[None, :] & present[:, None]
    else:
        total = tl.zeros([tile_rows, tile_features], dtype=tl.float32)
        places = row[:, None].to(tl.int64) * num_features + feature[None, :]
        kept = live[:, None] & present[None, :]
    if parallel:
        split = tl.program_id(1)
        sums = _split_sums(
            x_ptr, weights, x_stride, row, live, first_row, first_feature, split,
            num_columns, split_depth, even, tile_rows, tile_features, tile_depth, stages, swapped,
            bulk_rows,
        )  # fmt: skip
        size: tl.constexpr = tile_rows * tile_features
        tile = tl.program_id(0).to(tl.int64)
        cell = tl.arange(0, tile_features)[:, None] * tile_rows + tl.arange(0, tile_rows)[None, :]
        if not swapped:
            cell = tl.arange(0, tile_rows)[:, None] * tile_features + tl.arange(0, tile_features)[None, :]
        parts = sums_ptr + tile * (splits * size) + cell
        tl.store(parts + split * size, sums)
        tl.debug_barrier()  # all threads' writes are visible to the one that signals
        arrived = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel", scope="gpu")
        if arrived != splits - 1:
            return
        tl.store(arrivals_ptr + tile, 0)
        for part in tl.static_range(splits):
            # Other multiprocessors wrote them; this one's L1 cache may hold stale values.
            total += tl.load(parts + part * size, cache_modifier=".cg")
    else:
        for split in range(splits):
            total += _split_sums(
                x_ptr, weights, x_stride, row, live, first_row, first_feature, split,
                num_columns, split_depth, even, tile_rows, tile_features, tile_depth, stages, swapped,
                bulk_rows,
            )  # fmt: skip
    if has_bias:
        total += bias
    tl.store(out_ptr + places, total.to(out_ptr.dtype.element_ty), mask=kept)


@triton.jit  # type: ignore[untyped-decorator]
def _split_sums(  # type: ignore[no-untyped-def]
    x_ptr,
    weights,
    x_stride,
    row,
    live,
    first_row,
    first_feature,
    split,
    num_columns,
    split_depth,
    even: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_features: tl.constexpr,
    tile_depth: tl.constexpr,
    stages: tl.constexpr,
    swapped: tl.constexpr,
    bulk_rows: tl.constexpr,
):
    """Products of the columns of a split, summed from zero."""
    column = tl.arange(0, tile_depth)
    if not bulk_rows:
        xs = x_ptr + row[:, None].to(tl.int64) * x_stride + column[None, :]
    begin = split * split_depth
    end = tl.minimum(begin + split_depth, num_columns)
    if swapped:
        sums = tl.zeros([tile_features, tile_rows], dtype=tl.float32)
    else:
        sums = tl.zeros([tile_rows, tile_features], dtype=tl.float32)
    for start in tl.range(begin, end, tile_depth, num_stages=stages):
        if bulk_rows:
            x = x_ptr.load([first_row, start])
        elif even:
            x = tl.load(xs + start, mask=live[:, None], other=0.0)
        else:
            x = tl.load(xs + start, mask=live[:, None] & (column < num_columns - start)[None, :], other=0.0)
        weight = weights.load([first_feature, start])
        sums = tl.dot(weight, x.T, sums) if swapped else tl.dot(x, weight.T, sums)
    return sums
