"""The small operations on NVIDIA GPUs: each is one of flashinfer's fused kernels, on 16-bit tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flashinfer.activation import silu_and_mul
from flashinfer.norm import fused_add_rmsnorm, rmsnorm
from flashinfer.rope import apply_rope_with_cos_sin_cache_inplace
from torch import Tensor

from engine.models.ops import Ops, Rotation

__all__ = ["FlashInferOps"]


@dataclass(frozen=True, slots=True)
class _Angles(Rotation):
    """Where the kernel looks a step's angles up by itself."""

    table: Tensor
    positions: Tensor


class FlashInferOps(Ops):
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed: Tensor = rmsnorm(x, weight, eps)
        return normed

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        fused_add_rmsnorm(x, residual, weight, eps)
        return x, residual

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        product: Tensor = silu_and_mul(gate_up)
        return product

    def qk_norm(self, qk: Tensor, q_weight: Tensor, k_weight: Tensor, num_heads: int, eps: float) -> Tensor:
        for heads, weight in ((qk[:, :num_heads], q_weight), (qk[:, num_heads:], k_weight)):
            rmsnorm(heads, weight, eps, out=heads)
        return qk

    def rotation(self, table: Tensor, positions: Tensor, dtype: torch.dtype) -> Rotation:
        return _Angles(table, positions)

    def rotate(self, heads: Tensor, rotation: Rotation) -> Tensor:
        assert isinstance(rotation, _Angles), "whoever rotates has made the rotation"
        # The kernel takes queries and keys apart, but turns both alike: any split will do.
        first, last = heads[:, :-1].flatten(1), heads[:, -1]
        apply_rope_with_cos_sin_cache_inplace(
            rotation.positions, first, last, heads.shape[-1], rotation.table, is_neox=True
        )
        return heads
