"""Products of 4-bit weights with 16-bit activations on NVIDIA GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from engine.kernels.int4_matmul import int4_matmul
from engine.layers.formats.quantized import PackedMethod
from engine.layers.linear_layer import Linear
from engine.layers.routing import Routes

__all__ = ["GroupedInt4", "Int4OnGpu", "interleaved"]

_WIDEST: Final = 128
"""Input features of the widest group that the kernel multiplies."""


def interleaved(values: Tensor, zero: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values [..., out, in], and zeros and scales [..., out, groups], in the kernel's layout.

    Wider groups than 128 become several with the same scale.
    """
    groups = scale.shape[-1]
    width = values.shape[-1] // groups
    if width > _WIDEST:
        parts = width // _WIDEST
        zero, scale = (tensor.repeat_interleave(parts, -1) for tensor in (zero, scale))
        groups *= parts
    halves = values.reshape(*values.shape[:-1], groups, 2, -1)
    packed = (halves[..., 0, :] | halves[..., 1, :] << 4).flatten(-2)
    return packed.contiguous(), zero.contiguous(), scale.to(torch.float32).contiguous()


@dataclass(frozen=True, slots=True)
class Int4OnGpu(PackedMethod):
    packed: Tensor
    """[1, out, in / 2] uint8"""
    zero: Tensor
    """[1, out, groups] float32"""
    scale: Tensor
    """[1, out, groups] float32"""

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        product = int4_matmul(x.contiguous(), self.packed, self.zero, self.scale)
        return product if bias is None else product.add_(bias)


@dataclass(frozen=True, slots=True)
class GroupedInt4:
    """A `GroupedProduct`; tensors as in `Int4OnGpu`, of E experts."""

    packed: Tensor
    zero: Tensor
    scale: Tensor

    def __call__(self, x: Tensor, routes: Routes, by_token: bool) -> Tensor:
        return int4_matmul(
            x,
            self.packed,
            self.zero,
            self.scale,
            starts=routes.starts,
            order=routes.order if by_token else None,
            per_token=routes.per_token,
        )
