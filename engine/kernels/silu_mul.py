"""The MLP's gate, silu(gate) * up, as a PDL kernel; see add_norm.py."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from engine.kernels.pdl import pdl_wait, supports_pdl

__all__ = ["silu_mul"]

_BLOCK: Final = 2048


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for `gate_up` [T, 2I], contiguous and gate first: [T, I]."""
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        use_pdl = supports_pdl(gate_up.device)
        grid = (num_rows, triton.cdiv(size, _BLOCK))
        _silu_mul[grid](
            gate_up, out, size=size, block=_BLOCK, use_pdl=use_pdl, num_warps=4, launch_pdl=use_pdl
        )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _silu_mul(gate_up_ptr, out_ptr, size: tl.constexpr, block: tl.constexpr, use_pdl: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < size
    pdl_wait(use_pdl)
    gate = tl.load(gate_up_ptr + row * 2 * size + column, mask=inside).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * size + size + column, mask=inside).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * size + column, result.to(out_ptr.dtype.element_ty), mask=inside)
