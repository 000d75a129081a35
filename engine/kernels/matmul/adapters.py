"""Products of rows with the low-rank matrices of the adapter that each row has.

A program computes a tile of rows. It multiplies all of them with the matrices of one adapter after the other,
and keeps each row's own: a chunk of a prompt has one adapter, and the rows of decodes, which may have many,
read each adapter's matrices once. A row's sum does not depend on the others. Tiles without adapters end at
once and write nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl

_ROWS: Final = 16
"""Fewest rows of a product on tensor cores."""
_DEPTH: Final = 128
_FEATURES: Final = 128
_MOST_SPLITS: Final = 16
_PROGRAMS: Final = 256
"""Programs that keep a large GPU busy."""


def add_low_rank(
    product: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    slots: torch.Tensor,
    pieces: Sequence[range],
) -> None:
    """Add to `product` [T, out] what x [T, in] gives with `a` [S, P, r, in], then with `b` [S, out, r].

    `slots` [T] int64: -1 leaves a row as it is. `pieces`: P ranges of output features, each with its own
    part of `a`. `r` is a power of 2 from 16 on. Sums are in float32.
    """
    rows, depth = x.shape
    if not rows:
        return
    count, rank = a.shape[1:3]
    tiles, columns = triton.cdiv(rows, _ROWS), count * rank
    splits = max(1, min(_MOST_SPLITS, _PROGRAMS // (tiles * count), depth // (2 * _DEPTH)))
    splits = 1 << (splits.bit_length() - 1)
    inner = torch.empty((splits, rows, columns), dtype=torch.float32, device=x.device)
    # Products of float32 would lose 13 bits in the format of tensor cores.
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    _shrink[(tiles, count, splits)](
        x,
        a,
        slots,
        inner,
        rows,
        x.stride(0),
        depth=depth,
        count=count,
        rank=rank,
        part=triton.cdiv(triton.cdiv(depth, splits), _DEPTH) * _DEPTH,
        tile_rows=_ROWS,
        tile_depth=_DEPTH,
        precision=precision,
    )
    for number, piece in enumerate(pieces):
        _expand[(tiles, triton.cdiv(len(piece), _FEATURES))](
            inner,
            b,
            slots,
            product,
            rows,
            product.stride(0),
            features=b.shape[1],
            start=piece.start,
            stop=piece.stop,
            columns=columns,
            first=number * rank,
            rank=rank,
            splits=splits,
            tile_rows=_ROWS,
            tile_features=_FEATURES,
            precision=precision,
        )


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
    part: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_depth: tl.constexpr,
    precision: tl.constexpr,
):
    """Products with `a`, of one part of the input features and one of the merged projections."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    live = row < num_rows
    left = tl.load(slots_ptr + row, mask=live, other=-1)
    slot = tl.max(left, axis=0)
    if slot < 0:
        return
    number, split = tl.program_id(1), tl.program_id(2)
    within = tl.arange(0, rank)
    total = tl.zeros([tile_rows, rank], dtype=tl.float32)
    while slot >= 0:
        mine = left == slot
        weights = a_ptr + ((slot * count + number) * rank + within) * depth
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
        left = tl.where(mine, -1, left)
        slot = tl.max(left, axis=0)
    places = (split.to(tl.int64) * num_rows + row) * (count * rank) + number * rank
    tl.store(inner_ptr + places[:, None] + within[None, :], total, mask=live[:, None])


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _expand(  # type: ignore[no-untyped-def]
    inner_ptr,
    b_ptr,
    slots_ptr,
    product_ptr,
    num_rows,
    product_stride,
    features: tl.constexpr,
    start: tl.constexpr,
    stop: tl.constexpr,
    columns: tl.constexpr,
    first: tl.constexpr,
    rank: tl.constexpr,
    splits: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_features: tl.constexpr,
    precision: tl.constexpr,
):
    """Add the products of the sums of `_shrink` with `b`, in one of the merged projections."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    live = row < num_rows
    slots = tl.load(slots_ptr + row, mask=live, other=-1)
    slot = tl.max(slots, axis=0)
    if slot < 0:
        return
    adapted = slots >= 0
    feature = start + tl.program_id(1) * tile_features + tl.arange(0, tile_features)
    known = feature < stop
    within = tl.arange(0, rank)
    inner = tl.zeros([tile_rows, rank], dtype=tl.float32)
    for split in range(splits):
        places = (split * num_rows + row).to(tl.int64) * columns + first
        inner += tl.load(inner_ptr + places[:, None] + within[None, :], mask=adapted[:, None], other=0.0)
    inner = inner.to(b_ptr.dtype.element_ty)
    total = tl.zeros([tile_rows, tile_features], dtype=tl.float32)
    left = slots
    while slot >= 0:
        mine = left == slot
        weights = b_ptr + (slot * features + feature) * rank
        b = tl.load(weights[None, :] + within[:, None], mask=known[None, :], other=0.0)
        total = tl.dot(
            tl.where(mine[:, None], inner, tl.zeros_like(inner)), b, total, input_precision=precision
        )
        left = tl.where(mine, -1, left)
        slot = tl.max(left, axis=0)
    at = product_ptr + row[:, None].to(tl.int64) * product_stride + feature[None, :]
    here = adapted[:, None] & known[None, :]
    before = tl.load(at, mask=here, other=0.0).to(tl.float32)
    tl.store(at, (before + total).to(product_ptr.dtype.element_ty), mask=here)
