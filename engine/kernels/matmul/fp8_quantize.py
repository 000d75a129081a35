"""Activations in 8-bit floats (e4m3): a scale per token, or per group of a token's features."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from engine.kernels.matmul.grouped_matmul import BLOCK
from engine.kernels.pdl import pdl_wait, supports_pdl

_FP8: Final = torch.float8_e4m3fn
LARGEST: Final = 448.0
"""Largest value of e4m3."""
_GROUPS: Final = 16
"""Most groups that a program quantizes."""


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` [T, n] -> its values divided by their scales [T, n] e4m3, and the scales [T] float32."""
    num_rows, size = x.shape
    out = torch.empty((num_rows, size), dtype=_FP8, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if num_rows:
        block = triton.next_power_of_2(size)
        use_pdl = supports_pdl(x.device)
        _quantize_rows[(num_rows,)](
            x,
            out,
            scales,
            x.stride(0),
            size=size,
            largest=LARGEST,
            block=block,
            use_pdl=use_pdl,
            num_warps=max(1, min(16, block // 512)),
            launch_pdl=use_pdl,
        )
    return out, scales


def quantize_groups(x: torch.Tensor, *, for_cublas: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with a scale for each 128 features: values [T, n] and scales [T, ceil(n / 128)].

    `for_cublas`: T is rounded up to a multiple of 4, undefined rows after, and scales are stored by group.
    """
    num_rows, size = x.shape
    stored_rows = (num_rows + 3) // 4 * 4 if for_cublas else num_rows
    groups = triton.cdiv(size, BLOCK)
    out = torch.empty((stored_rows, size), dtype=_FP8, device=x.device)
    shape = (groups, stored_rows) if for_cublas else (stored_rows, groups)
    scales = torch.empty(shape, dtype=torch.float32, device=x.device)
    if for_cublas:
        scales = scales.t()
    if num_rows:
        count = min(triton.next_power_of_2(groups), _GROUPS)
        use_pdl = supports_pdl(x.device)
        _quantize_groups[(num_rows, triton.cdiv(groups, count))](
            x,
            out,
            scales,
            x.stride(0),
            scales.stride(0),
            scales.stride(1),
            size=size,
            groups=groups,
            largest=LARGEST,
            width=BLOCK,
            count=count,
            use_pdl=use_pdl,
            num_warps=4,
            launch_pdl=use_pdl,
        )
    return out, scales


@triton.jit  # type: ignore[untyped-decorator]
def quantized(x, scale, largest: tl.constexpr):  # type: ignore[no-untyped-def]
    """`x` float32 in units of `scale`, rounded to e4m3. NaN stays NaN."""
    cut = tl.minimum(tl.maximum(x * (1.0 / scale), -largest), largest)
    return tl.where(x == x, cut, x).to(tl.float8e4nv)


@triton.jit  # type: ignore[untyped-decorator]
def _quantize_rows(  # type: ignore[no-untyped-def]
    x_ptr,
    out_ptr,
    scales_ptr,
    stride,
    size: tl.constexpr,
    largest: tl.constexpr,
    block: tl.constexpr,
    use_pdl: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < size
    pdl_wait(use_pdl)
    x = tl.load(x_ptr + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-12) / largest
    tl.store(out_ptr + row * size + column, quantized(x, scale, largest), mask=inside)
    tl.store(scales_ptr + row, scale)


@triton.jit(do_not_specialize=["scales_row", "scales_group"])  # type: ignore[untyped-decorator]
def _quantize_groups(  # type: ignore[no-untyped-def]
    x_ptr,
    out_ptr,
    scales_ptr,
    stride,
    scales_row,
    scales_group,
    size: tl.constexpr,
    groups: tl.constexpr,
    largest: tl.constexpr,
    width: tl.constexpr,
    count: tl.constexpr,
    use_pdl: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * count + tl.arange(0, count)
    column = group[:, None] * width + tl.arange(0, width)[None, :]
    inside = column < size
    pdl_wait(use_pdl)
    x = tl.load(x_ptr + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-12) / largest
    tl.store(out_ptr + row * size + column, quantized(x, scale[:, None], largest), mask=inside)
    tl.store(scales_ptr + row * scales_row + group * scales_group, scale, mask=group < groups)
