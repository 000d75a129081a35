"""Matrix-vector products: the linear layers of a single decode, which are bound by reading weights.

A program loads its first weights before its input vector is ready (pdl.py). On an H200 the products and norms
of an 8B model's layer take 106 µs instead of 118; reading the weights alone takes 104.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import torch
import triton
import triton.language as tl

from engine.kernels.matmul.grouped_matmul import BLOCK
from engine.kernels.pdl import pdl_wait, supports_pdl

_ROWS: Final = 4
"""The most rows that a program multiplies."""


Scales: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Scales of a vector [1] and of the rows of a weight [out], both e4m3; or of their blocks, [1, in / 128] and
[out / 128, in / 128].
"""


class _Tiling(NamedTuple):
    rows: int
    columns: int
    ahead: int
    """Tiles of weights that are loaded before waiting for the vector: one or two."""
    stages: int
    warps: int


def suits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `matvec` supports these and is faster than cuBLAS."""
    return (
        x.shape[0] == 1
        and x.dtype in (torch.bfloat16, torch.float16)
        and weight.shape[1] % 512 == 0
        and weight.shape[0] % (2 * _ROWS) == 0
        and weight.is_contiguous()
    )


def matvec(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scales: Scales | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """x [1, in] times `weight` [out, in] transposed, plus `bias` [out]: [1, out]; sums are in float32.

    `scales`: if both are e4m3. `dtype`: of the result, by default that of `x`.
    """
    out = torch.empty((1, len(weight)), dtype=dtype or x.dtype, device=x.device)
    _launch(x, weight, bias, out, gated=False, scales=scales)
    return out


def gated_matvec(
    x: torch.Tensor, weight: torch.Tensor, scales: Scales | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """silu(gate) * up for (gate, up) = x [1, in] times `weight` [2 * out, in] transposed: [1, out].

    Both are rounded to the result's dtype before the multiplication, as if they had been stored. The rest as
    of `matvec`.
    """
    out = torch.empty((1, len(weight) // 2), dtype=dtype or x.dtype, device=x.device)
    _launch(x, weight, None, out, gated=True, scales=scales)
    return out


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    gated: bool,
    scales: Scales | None,
) -> None:
    num_rows, num_columns = out.shape[1], weight.shape[1]
    blocks = scales is not None and scales[1].dim() == 2
    tiling = _tiling(num_columns, gated=gated, scaled=scales is not None, blocks=blocks)
    use_pdl = supports_pdl(x.device)
    _matvec[(num_rows // tiling.rows,)](
        x,
        weight,
        bias if bias is not None else weight,
        out,
        *(scales or (x, weight)),
        num_rows=num_rows,
        num_columns=num_columns,
        has_bias=bias is not None,
        gated=gated,
        scaled=scales is not None,
        block=BLOCK if blocks else 0,
        tile_rows=tiling.rows,
        tile_columns=tiling.columns,
        ahead=tiling.ahead,
        stages=tiling.stages,
        use_pdl=use_pdl,
        num_warps=tiling.warps,
        launch_pdl=use_pdl,
    )


def _tiling(num_columns: int, *, gated: bool, scaled: bool, blocks: bool) -> _Tiling:
    """The fastest on an H200: one wide tile for short rows, pipelined tiles for long rows.

    `scaled`: of 8-bit values, of which a program reads half the bytes. `blocks`: with scales of blocks,
    which are not worth copying ahead for wide tiles.
    """
    wide, short = num_columns % 2048 == 0, num_columns <= 8192
    if wide and short:
        rows, warps = (2, 4 if scaled else 8) if gated else (4 if scaled else 2, 4)
        return _Tiling(rows, 2048, min(2, num_columns // 2048), 1, warps)
    if wide and scaled:
        return _Tiling(2 if gated else 4, 2048, 1, 1 if blocks else 3, 4)
    return _Tiling(_ROWS, 512, 1, 3, 8 if gated else 4)


@triton.jit  # type: ignore[untyped-decorator]
def _matvec(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    x_scale_ptr,
    weight_scale_ptr,
    num_rows: tl.constexpr,
    num_columns: tl.constexpr,
    has_bias: tl.constexpr,
    gated: tl.constexpr,
    scaled: tl.constexpr,
    block: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
    ahead: tl.constexpr,
    stages: tl.constexpr,
    use_pdl: tl.constexpr,
):
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    column = tl.arange(0, tile_columns)
    weights = weight_ptr + row[:, None].to(tl.int64) * num_columns + column[None, :]
    others = weights + num_rows * num_columns  # the gated rows; read only if there are any
    x_scales, scales, other_scales = x_scale_ptr, weight_scale_ptr, weight_scale_ptr
    if block:  # the rows of a program are of one block
        part = tl.arange(0, tile_columns // 16) // (block // 16)
        x_scales += part
        first_row = tl.program_id(0) * tile_rows
        scales += first_row // block * (num_columns // block) + part
        other_scales += (num_rows + first_row) // block * (num_columns // block) + part
    first = tl.load(weights, eviction_policy="evict_first")
    if gated:
        other_first = tl.load(others, eviction_policy="evict_first")
    if ahead == 2:
        second = tl.load(weights + tile_columns, eviction_policy="evict_first")
        if gated:
            other_second = tl.load(others + tile_columns, eviction_policy="evict_first")
    pdl_wait(use_pdl)
    # Sums across lanes are taken only at the end: a reduction in every round would wait for its loads.
    x = _vector(x_ptr + column, scaled)
    sums = _products(first, x, 0, x_scales, scales, scaled, block)
    if gated:
        other_sums = _products(other_first, x, 0, x_scales, other_scales, scaled, block)
    if ahead == 2:
        x = _vector(x_ptr + tile_columns + column, scaled)
        sums += _products(second, x, tile_columns, x_scales, scales, scaled, block)
        if gated:
            other_sums += _products(other_second, x, tile_columns, x_scales, other_scales, scaled, block)
    for start in tl.range(ahead * tile_columns, num_columns, tile_columns, num_stages=stages):
        x = _vector(x_ptr + start + column, scaled)
        weight = tl.load(weights + start, eviction_policy="evict_first")
        sums += _products(weight, x, start, x_scales, scales, scaled, block)
        if gated:
            other = tl.load(others + start, eviction_policy="evict_first")
            other_sums += _products(other, x, start, x_scales, other_scales, scaled, block)
    total = tl.sum(sums, axis=1)
    dtype = out_ptr.dtype.element_ty
    if scaled:
        x_scale = 16.0 if block else 16.0 * tl.load(x_scale_ptr)
        total *= x_scale if block else x_scale * tl.load(weight_scale_ptr + row)
    if has_bias:
        total += tl.load(bias_ptr + row).to(tl.float32)
    if gated:
        up = tl.sum(other_sums, axis=1)
        if scaled:
            up *= x_scale if block else x_scale * tl.load(weight_scale_ptr + num_rows + row)
        gate = total.to(dtype).to(tl.float32)
        total = gate / (1.0 + tl.exp(-gate)) * up.to(dtype).to(tl.float32)
    tl.store(out_ptr + row, total.to(dtype))


@triton.jit  # type: ignore[untyped-decorator]
def _vector(x_ptrs, scaled: tl.constexpr):  # type: ignore[no-untyped-def]
    """[1, C] in float32; if it is e4m3, a sixteenth of it in float16, exact."""
    x = tl.load(x_ptrs)
    x = x.to(tl.float16) * 0.0625 if scaled else x.to(tl.float32)
    return x[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def _products(weights, x, start, x_scales, scales, scaled: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """`weights` [R, C] times `x`: [R, C] float32; of 8-bit floats the sums of neighbours.

    Those products are exact in float16, two at a time, and four of them add up to less than its largest
    number; their sums are rounded to 11 bits. In float32 each weight would take twice the instructions.
    Of blocks, sums of 16 [R, C / 16] times the scales at `start` and the pointers [C / 16].
    """
    if scaled:
        products = weights.to(tl.float16) * x
        fours = tl.reshape(products, (products.shape[0], products.shape[1] // 4, 4))
        result = tl.sum(fours, axis=2).to(tl.float32)
        if block:
            sixteens = tl.reshape(result, (result.shape[0], result.shape[1] // 4, 4))
            scale = tl.load(x_scales + start // block) * tl.load(scales + start // block)
            result = tl.sum(sixteens, axis=2) * scale[None, :]
    else:
        result = weights.to(tl.float32) * x
    return result
