"""The small operations of a gated delta net, each as one pass: its rates, and its gated norm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def delta_rates(
    rates: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decays and learning rates [T, H] float32 from `rates` [T, 2H]: see `Ops.delta_rates`."""
    num_tokens, heads = rates.shape[0], len(a_log)
    log_decay, beta = (
        torch.empty((num_tokens, heads), dtype=torch.float32, device=rates.device) for _ in range(2)
    )
    if num_tokens:
        _rates[(num_tokens,)](
            rates,
            a_log,
            dt_bias,
            log_decay,
            beta,
            heads=heads,
            block=triton.next_power_of_2(heads),
            num_warps=1,
        )
    return log_decay, beta


def gated_norm(heads: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`heads` [T, H, D], contiguous, each of unit mean square times `weight` [D] and SiLU of `gate`.

    `gate` is [T, H, D], of any stride between tokens.
    """
    num_tokens, num_heads, size = heads.shape
    out = torch.empty_like(heads)
    if num_tokens:
        _gated_norm[(num_tokens, num_heads)](
            heads,
            gate,
            weight,
            out,
            gate.stride(0),
            eps,
            num_heads=num_heads,
            size=size,
            block=triton.next_power_of_2(size),
            num_warps=1,
        )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _rates(  # type: ignore[no-untyped-def]
    rates_ptr, a_log_ptr, dt_bias_ptr, log_decay_ptr, beta_ptr, heads: tl.constexpr, block: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, block)
    inside = head < heads
    b = tl.load(rates_ptr + token * 2 * heads + head, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(rates_ptr + token * 2 * heads + heads + head, mask=inside, other=0.0).to(tl.float32)
    a += tl.load(dt_bias_ptr + head, mask=inside, other=0.0)
    # log(1 + exp(a)), as torch computes it
    softplus = tl.where(a > 20.0, a, tl.log(1.0 + tl.exp(tl.minimum(a, 20.0))))
    decay = -tl.exp(tl.load(a_log_ptr + head, mask=inside, other=0.0)) * softplus
    tl.store(log_decay_ptr + token * heads + head, decay, mask=inside)
    tl.store(beta_ptr + token * heads + head, 1.0 / (1.0 + tl.exp(-b)), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gated_norm(  # type: ignore[no-untyped-def]
    heads_ptr,
    gate_ptr,
    weight_ptr,
    out_ptr,
    gate_stride,
    eps,
    num_heads: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    feature = tl.arange(0, block)
    inside = feature < size
    place = (token * num_heads + head) * size + feature
    values = tl.load(heads_ptr + place, mask=inside, other=0.0).to(tl.float32)
    values *= tl.rsqrt(tl.sum(values * values, axis=0) / size + eps)
    values *= tl.load(weight_ptr + feature, mask=inside, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    gate = tl.load(gate_ptr + token * gate_stride + head * size + feature, mask=inside, other=0.0)
    gate = gate.to(tl.float32)
    result = values.to(dtype).to(tl.float32) * gate / (1.0 + tl.exp(-gate))
    tl.store(out_ptr + place, result.to(dtype), mask=inside)
