"""Products of MXFP4 weights with bfloat16 activations on NVIDIA GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.matmul.mxfp4 import Mxfp4Weights, mxfp4_matmul, pack_mxfp4
from engine.layers.formats.quantized import PackedMethod
from engine.layers.linear.linear_layer import Linear
from engine.layers.routing import Routes


def packed(codes: Tensor, exponents: Tensor) -> Mxfp4Weights:
    """Of one matrix [N, K], or of experts [E, N, K]."""
    if codes.dim() == 2:
        codes, exponents = codes.unsqueeze(0), exponents.unsqueeze(0)
    return pack_mxfp4(codes, exponents)


@dataclass(frozen=True, slots=True)
class Mxfp4OnGpu(PackedMethod):
    weights: Mxfp4Weights
    """Of one matrix."""

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        product = mxfp4_matmul(x.contiguous(), self.weights)
        return product if bias is None else product.add_(bias)


@dataclass(frozen=True, slots=True)
class GroupedMxfp4:
    """A `GroupedProduct`."""

    weights: Mxfp4Weights

    def __call__(self, x: Tensor, routes: Routes, by_token: bool) -> Tensor:
        return mxfp4_matmul(
            x,
            self.weights,
            starts=routes.starts,
            order=routes.order if by_token else None,
            per_token=routes.per_token,
        )
