"""Tiles of a grouped product: rows ordered by expert, each tile of rows within one expert's.

A program finds its tile by counting the tiles of the experts before. The grid is the largest that any
distribution of the rows needs, and programs after the last tile end at once, so a launch does not depend on
the routes and can be captured in a graph. A plain product is the case of one expert. (The idea of tiles per
expert is vLLM's fused_moe.)
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

SWIZZLE: Final = 8
"""Tiles of rows that are computed together, so that they find the weights in the cache."""


def row_tiles(num_rows: int, num_experts: int, starts: torch.Tensor | None, tile_rows: int) -> int:
    """Tiles of rows that are enough for any distribution of `num_rows` over experts."""
    whole: int = triton.cdiv(num_rows, tile_rows)
    # Each expert that has rows may leave one tile incomplete.
    return whole if starts is None else min(num_rows, whole + num_experts)


@triton.jit  # type: ignore[untyped-decorator]
def place_of(tile, row_tiles, feature_tiles, swizzle: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which tile of rows, and which of features, a program computes."""
    band = tile // (swizzle * feature_tiles)
    height = min(row_tiles - band * swizzle, swizzle)
    within = tile % (swizzle * feature_tiles)
    return band * swizzle + within % height, within // height


@triton.jit  # type: ignore[untyped-decorator]
def rows_of(  # type: ignore[no-untyped-def]
    starts_ptr,
    order_ptr,
    row_tile,
    num_rows,
    num_experts: tl.constexpr,
    columns: tl.constexpr,
    per_token: tl.constexpr,
    grouped: tl.constexpr,
    gathered: tl.constexpr,
    tile_rows: tl.constexpr,
):
    """The expert of a tile, its first row, the end of the expert's rows, and the input's row for each row.

    Behind the last tile the first row is not before the end.
    """
    if grouped:
        expert = tl.arange(0, columns)
        real = expert < num_experts
        begins = tl.load(starts_ptr + expert, mask=real, other=0)
        ends = tl.load(starts_ptr + expert + 1, mask=real, other=0)
        tiles = (ends - begins + tile_rows - 1) // tile_rows
        upto = tl.cumsum(tiles, axis=0)
        chosen = tl.sum((upto <= row_tile).to(tl.int32), axis=0)
        mine = expert == chosen
        before = tl.sum(tl.where(mine, upto - tiles, 0), axis=0)
        first = tl.sum(tl.where(mine, begins, 0), axis=0) + (row_tile - before) * tile_rows
        end = tl.sum(tl.where(mine, ends, 0), axis=0)
    else:
        chosen = row_tile * 0
        first = row_tile * tile_rows
        end = row_tile * 0 + num_rows
    row = first + tl.arange(0, tile_rows)
    source = row.to(tl.int64)
    if gathered:
        source = (tl.load(order_ptr + row, mask=row < end, other=0) // per_token).to(tl.int64)
    return chosen.to(tl.int64), first, end, source
