"""The gate of an MLP, such as silu(gate) * up, as a PDL kernel; see add_norm.py."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from engine.kernels.pdl import pdl_wait, supports_pdl
from engine.model_config.parts.layer_options import Activation

_BLOCK: Final = 2048


def gate(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The activation of `gate_up` [T, 2I], contiguous and gate first: [T, I]."""
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        use_pdl = supports_pdl(gate_up.device)
        _gate[(num_rows, triton.cdiv(size, _BLOCK))](
            gate_up,
            out,
            size=size,
            activation=activation.name,
            block=_BLOCK,
            use_pdl=use_pdl,
            num_warps=4,
            launch_pdl=use_pdl,
        )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _gate(  # type: ignore[no-untyped-def]
    gate_up_ptr,
    out_ptr,
    size: tl.constexpr,
    activation: tl.constexpr,
    block: tl.constexpr,
    use_pdl: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < size
    pdl_wait(use_pdl)
    gate = tl.load(gate_up_ptr + row * 2 * size + column, mask=inside).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * size + size + column, mask=inside).to(tl.float32)
    steepness = gate
    if activation == "GELU":
        steepness = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    if activation == "CLAMPED":
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0) + 1.0
        steepness = 1.702 * gate
    result = gate / (1.0 + tl.exp(-steepness)) * up
    tl.store(out_ptr + row * size + column, result.to(out_ptr.dtype.element_ty), mask=inside)
