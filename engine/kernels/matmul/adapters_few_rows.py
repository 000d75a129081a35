"""Products of a few rows with the low-rank matrices of the adapter that each row has: steps of decodes.

A pair of kernels for each linear layer of a model: where many small programs have nothing to do, these alone
take longer than the products. So the programs are few, and each takes units of work in turn: an adapter of
the step with a part of its features. An adapter's matrices are read once for all rows. A row's sum does not
depend on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl

from engine.kernels.matmul.adapters import DEPTH, bounds_of, part_of, precision_of, splits_of

_FEWEST_ROWS: Final = 5
"""A step of one row took 5.07 ms with these kernels, and 4.82 with a former grid of the other pair."""
_MOST_ROWS: Final = 128
_ROW_TILES: Final = (16, 64, _MOST_ROWS)
"""Rows that the programs of a step have. Few, since each is compiled for each shape of a layer."""
_PROGRAMS: Final = 264
"""Two for each processor of a large GPU."""
_STAGED: Final = 160 << 10
"""Bytes that a program may keep loads of later turns in."""
_TILE: Final = 8192
"""Products that a program has registers for."""
_MOST_SPLITS: Final = 4
"""Parts of the input features. Each is read again by all programs of `expand`; measured."""


def suits(x: torch.Tensor) -> bool:
    return _FEWEST_ROWS <= len(x) <= _MOST_ROWS


def shrink(x: torch.Tensor, a: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Products of `x` [T, in] with `a` [S, P, r, in], as terms of their sums: [splits, T, P * r] float32.

    For `x` that `suits`. Rows whose slot is -1 are not written. May run beside the layer's own product.
    """
    rows, depth = x.shape
    num_slots, count, rank = a.shape[:3]
    splits = splits_of(depth, _MOST_SPLITS)
    staged = (_tile_rows(rows) + rank) * DEPTH * x.element_size()
    inner = torch.empty((splits, rows, count * rank), dtype=torch.float32, device=x.device)
    _shrink[(min(_PROGRAMS, num_slots * count * splits),)](
        x,
        a,
        slots,
        inner,
        rows,
        x.stride(0),
        depth=depth,
        count=count,
        rank=rank,
        splits=splits,
        part=part_of(depth, splits),
        tile_rows=_tile_rows(rows),
        tile_depth=DEPTH,
        num_slots=num_slots,
        padded_slots=triton.next_power_of_2(num_slots),
        precision=precision_of(x),
        num_stages=max(1, min(4, _STAGED // staged)),
    )
    return inner


def expand(
    product: torch.Tensor,
    inner: torch.Tensor,
    b: torch.Tensor,
    slots: torch.Tensor,
    pieces: Sequence[range],
) -> None:
    """Add to `product` [T, out] the products of what `shrink` returned with `b` [S, out, r]."""
    splits, rows, columns = inner.shape
    num_slots, features, rank = b.shape
    most = min(256, _TILE // _tile_rows(rows))
    tile = min(most, max(64, triton.next_power_of_2(features // 96)))
    tiles = [triton.cdiv(len(piece), tile) for piece in pieces]
    _expand[(min(2 * _PROGRAMS, num_slots * sum(tiles)),)](
        inner,
        b,
        slots,
        product,
        rows,
        product.stride(0),
        features=features,
        **bounds_of(pieces),
        tiles_0=tiles[0],
        tiles_1=sum(tiles[1:2]),
        tiles=sum(tiles),
        columns=columns,
        rank=rank,
        splits=splits,
        tile_rows=_tile_rows(rows),
        tile_features=tile,
        num_slots=num_slots,
        padded_slots=triton.next_power_of_2(num_slots),
        precision=precision_of(product),
        num_stages=1,
    )


def _tile_rows(rows: int) -> int:
    return next(tile for tile in _ROW_TILES if rows <= tile)


@triton.jit  # type: ignore[untyped-decorator]
def _present(  # type: ignore[no-untyped-def]
    slots, num_slots: tl.constexpr, padded_slots: tl.constexpr
):
    """[padded_slots]: whether a row has the slot."""
    numbers = tl.arange(0, padded_slots)
    return tl.max((slots[:, None] == numbers[None, :]).to(tl.int32), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _nth(present, place, padded_slots: tl.constexpr):  # type: ignore[no-untyped-def]
    """The slot in this place of those that are present."""
    chosen = (present > 0) & (tl.cumsum(present, axis=0) == place + 1)
    return tl.sum(tl.where(chosen, tl.arange(0, padded_slots), 0), axis=0)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _shrink(  # type: ignore[no-untyped-def]
    x_ptr,
    a_ptr,
    slots_ptr,
    inner_ptr,
    num_rows,
    x_stride,
    depth: tl.constexpr,
    count: tl.constexpr,
    rank: tl.constexpr,
    splits: tl.constexpr,
    part: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_depth: tl.constexpr,
    num_slots: tl.constexpr,
    padded_slots: tl.constexpr,
    precision: tl.constexpr,
):
    """A unit: an adapter, one of the merged projections, and one part of the input features."""
    row = tl.arange(0, tile_rows)
    within = tl.arange(0, rank)
    slots = tl.load(slots_ptr + row, mask=row < num_rows, other=-1)
    present = _present(slots, num_slots, padded_slots)
    units = tl.sum(present, axis=0) * count * splits
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        slot = _nth(present, unit // (count * splits), padded_slots).to(tl.int64)
        number, split = unit // splits % count, unit % splits
        mine = slots == slot
        weights = a_ptr + ((slot * count + number) * rank + within) * depth
        total = tl.zeros([tile_rows, rank], dtype=tl.float32)
        for start in range(0, part, tile_depth):
            column = split * part + start + tl.arange(0, tile_depth)
            known = column < depth
            x = tl.load(
                x_ptr + row[:, None].to(tl.int64) * x_stride + column[None, :],
                mask=mine[:, None] & known[None, :],
                other=0.0,
            )
            a = tl.load(weights[None, :] + column[:, None], mask=known[:, None], other=0.0)
            total = tl.dot(x, a, total, input_precision=precision)
        places = (split * num_rows + row) * (count * rank) + number * rank
        tl.store(inner_ptr + places[:, None] + within[None, :], total, mask=mine[:, None])


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _expand(  # type: ignore[no-untyped-def]
    inner_ptr,
    b_ptr,
    slots_ptr,
    product_ptr,
    num_rows,
    product_stride,
    features: tl.constexpr,
    start_0: tl.constexpr,
    start_1: tl.constexpr,
    start_2: tl.constexpr,
    stop_0: tl.constexpr,
    stop_1: tl.constexpr,
    stop_2: tl.constexpr,
    tiles_0: tl.constexpr,
    tiles_1: tl.constexpr,
    tiles: tl.constexpr,
    columns: tl.constexpr,
    rank: tl.constexpr,
    splits: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_features: tl.constexpr,
    num_slots: tl.constexpr,
    padded_slots: tl.constexpr,
    precision: tl.constexpr,
):
    """A unit: an adapter, and a tile of output features of one of the merged projections."""
    row = tl.arange(0, tile_rows)
    within = tl.arange(0, rank)
    slots = tl.load(slots_ptr + row, mask=row < num_rows, other=-1)
    present = _present(slots, num_slots, padded_slots)
    units = tl.sum(present, axis=0) * tiles
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        slot = _nth(present, unit // tiles, padded_slots).to(tl.int64)
        tile = unit % tiles
        second, third = tile >= tiles_0, tile >= tiles_0 + tiles_1
        number = second.to(tl.int32) + third.to(tl.int32)
        tile -= tl.where(third, tiles_0 + tiles_1, tl.where(second, tiles_0, 0))
        start = tl.where(third, start_2, tl.where(second, start_1, start_0))
        stop = tl.where(third, stop_2, tl.where(second, stop_1, stop_0))
        feature = start + tile * tile_features + tl.arange(0, tile_features)
        known = feature < stop
        mine = slots == slot
        weights = b_ptr + (slot * features + feature) * rank
        b = tl.load(weights[None, :] + within[:, None], mask=known[None, :], other=0.0)
        at = product_ptr + row[:, None].to(tl.int64) * product_stride + feature[None, :]
        here = mine[:, None] & known[None, :]
        before = tl.load(at, mask=here, other=0.0).to(tl.float32)
        inner = tl.zeros([tile_rows, rank], dtype=tl.float32)
        for split in tl.static_range(splits):
            places = (split * num_rows + row) * columns + number * rank
            inner += tl.load(inner_ptr + places[:, None] + within[None, :], mask=mine[:, None], other=0.0)
        total = tl.dot(inner.to(b_ptr.dtype.element_ty), b, input_precision=precision)
        tl.store(at, (before + total).to(product_ptr.dtype.element_ty), mask=here)
