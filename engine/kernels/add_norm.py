"""The sum of a layer's output and the residual, and its RMS norm, in one pass.

flashinfer's kernel computes the same. This one also supports programmatic dependent launch (pdl.py), which
together with the other small kernels here saves 2.5 µs per layer of an 8B model.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.pdl import pdl_wait, supports_pdl


def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """`residual` becomes x + residual, and `x` that scaled to unit mean square, times `weight`.

    `x` and `residual` are [T, d] and contiguous, `weight` is [d]; sums and means are in float32.
    """
    num_rows, size = x.shape
    if num_rows == 0:
        return
    block = triton.next_power_of_2(size)
    use_pdl = supports_pdl(x.device)
    _add_norm[(num_rows,)](
        x,
        residual,
        weight,
        eps,
        size=size,
        block=block,
        use_pdl=use_pdl,
        num_warps=max(1, min(16, block // 512)),
        launch_pdl=use_pdl,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(  # type: ignore[no-untyped-def]
    x_ptr, residual_ptr, weight_ptr, eps, size: tl.constexpr, block: tl.constexpr, use_pdl: tl.constexpr
):
    column = tl.arange(0, block)
    inside = column < size
    weight = tl.load(weight_ptr + column, mask=inside).to(tl.float32)
    pdl_wait(use_pdl)
    row = tl.program_id(0).to(tl.int64) * size + column
    total = tl.load(x_ptr + row, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(residual_ptr + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual_ptr + row, total.to(residual_ptr.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(total * total, axis=0) / size + eps)
    tl.store(x_ptr + row, (total * scale * weight).to(x_ptr.dtype.element_ty), mask=inside)
