"""The small operations on NVIDIA GPUs: each is one of flashinfer's fused kernels, on 16-bit tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flashinfer.activation import silu_and_mul
from flashinfer.norm import fused_add_rmsnorm, rmsnorm
from flashinfer.rope import apply_rope_with_cos_sin_cache_inplace
from torch import Tensor

from engine.models.ops import Ops, Rotation

__all__ = ["FlashInferOps", "Positions"]


@dataclass(frozen=True, slots=True)
class Positions:
    """Where a kernel looks a step's angles up by itself. A `Rotation`."""

    table: Tensor
    """As of `rope_table`."""
    positions: Tensor
    """[T]"""

    def turn(self, heads: Tensor) -> Tensor:
        # The kernel takes queries and keys apart, but turns both alike: any split will do.
        first, last = heads[:, :-1].flatten(1), heads[:, -1]
        apply_rope_with_cos_sin_cache_inplace(
            self.positions, first, last, heads.shape[-1], self.table, is_neox=True
        )
        return heads


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

    def norm_heads(self, heads: Tensor, weight: Tensor, eps: float) -> None:
        rmsnorm(heads, weight, eps, out=heads)

    def rotation(self, table: Tensor, positions: Tensor, dtype: torch.dtype) -> Rotation:
        return Positions(table, positions)
