"""Products of many rows with the low-rank matrices of the adapter that each row has: steps with prompts.

A program computes a tile of rows, with one adapter after the other: a chunk of a prompt has one. A row's sum
does not depend on the others. Programs without rows end at once and write nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

import torch
import triton
import triton.language as tl

from engine.kernels.pdl import pdl_wait, supports_pdl

_ROWS: Final = 16
"""Fewest rows of a product on tensor cores."""
DEPTH: Final = 128
"""Input features that a program multiplies at a time."""
_FEATURES: Final = 128
_MOST_SPLITS: Final = 16
_MOST_PIECES: Final = 3
_PROGRAMS: Final = 256
"""Programs that keep a large GPU busy."""


class FeatureBounds(TypedDict):
    """First and last output features of each of the merged projections; those that are missing have none."""

    start_0: int
    start_1: int
    start_2: int
    stop_0: int
    stop_1: int
    stop_2: int


def bounds_of(pieces: Sequence[range]) -> FeatureBounds:
    assert len(pieces) <= _MOST_PIECES
    first, second, third = [*pieces, *[range(0)] * (_MOST_PIECES - len(pieces))]
    return {
        "start_0": first.start,
        "start_1": second.start,
        "start_2": third.start,
        "stop_0": first.stop,
        "stop_1": second.stop,
        "stop_2": third.stop,
    }


def splits_of(depth: int, most: int) -> int:
    """Parts of `depth` input features that are summed apart: a power of 2, up to `most`."""
    splits = max(1, min(most, depth // (2 * DEPTH)))
    return 1 << (splits.bit_length() - 1)


def part_of(depth: int, splits: int) -> int:
    """Input features of a part."""
    return int(triton.cdiv(triton.cdiv(depth, splits), DEPTH) * DEPTH)


def precision_of(x: torch.Tensor) -> str:
    """Products of float32 would lose 13 bits in the format of tensor cores."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


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
    use_pdl = x.is_cuda and supports_pdl(x.device)
    splits = splits_of(depth, min(_MOST_SPLITS, _PROGRAMS // (tiles * count)))
    inner = torch.empty((splits, rows, columns), dtype=torch.float32, device=x.device)
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
        part=part_of(depth, splits),
        tile_rows=_ROWS,
        tile_depth=DEPTH,
        precision=precision_of(x),
        use_pdl=use_pdl,
        launch_pdl=use_pdl,
    )
    _expand[(tiles, triton.cdiv(max(map(len, pieces)), _FEATURES), count)](
        inner,
        b,
        slots,
        product,
        rows,
        product.stride(0),
        features=b.shape[1],
        **bounds_of(pieces),
        columns=columns,
        rank=rank,
        splits=splits,
        tile_rows=_ROWS,
        tile_features=_FEATURES,
        precision=precision_of(x),
        use_pdl=use_pdl,
        launch_pdl=use_pdl,
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
    use_pdl: tl.constexpr,
):
    """Products with `a`, of one part of the input features and one of the merged projections."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    pdl_wait(use_pdl)
    slots = tl.load(slots_ptr + row, mask=row < num_rows, other=-1)
    slot = tl.max(slots, axis=0)
    if slot < 0:
        return
    number, split = tl.program_id(1), tl.program_id(2)
    within = tl.arange(0, rank)
    total = tl.zeros([tile_rows, rank], dtype=tl.float32)
    left = slots
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
    tl.store(inner_ptr + places[:, None] + within[None, :], total, mask=(slots >= 0)[:, None])


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
    columns: tl.constexpr,
    rank: tl.constexpr,
    splits: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_features: tl.constexpr,
    precision: tl.constexpr,
    use_pdl: tl.constexpr,
):
    """Add the products of the sums of `_shrink` with `b`, in one of the merged projections."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    number = tl.program_id(2)
    start = tl.where(number == 0, start_0, tl.where(number == 1, start_1, start_2))
    stop = tl.where(number == 0, stop_0, tl.where(number == 1, stop_1, stop_2))
    first_feature = start + tl.program_id(1) * tile_features
    pdl_wait(use_pdl)
    slots = tl.load(slots_ptr + row, mask=row < num_rows, other=-1)
    slot = tl.max(slots, axis=0)
    if slot < 0:
        return
    if first_feature >= stop:
        return
    adapted = slots >= 0
    feature = first_feature + tl.arange(0, tile_features)
    known = feature < stop
    within = tl.arange(0, rank)
    inner = tl.zeros([tile_rows, rank], dtype=tl.float32)
    for split in range(splits):
        places = (split * num_rows + row).to(tl.int64) * columns + number * rank
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
