"""Products of weights in 4-bit floats with bfloat16 activations on NVIDIA GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.matmul.fp4 import Fp4Weights, fp4_matmul, pack_fp4
from engine.modeling.layers.formats.quantized import PackedMethod
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.routing import Routes


def packed(codes: Tensor, scales: Tensor, factor: Tensor | None = None) -> Fp4Weights:
    """Pack one matrix [N, K], or experts [E, N, K]."""
    if codes.dim() == 2:
        codes, scales = codes.unsqueeze(0), scales.unsqueeze(0)
    return pack_fp4(codes, scales, factor)


@dataclass(frozen=True, slots=True)
class Fp4OnGpu(PackedMethod):
    weights: Fp4Weights
    """Weights of one matrix."""

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        product = fp4_matmul(x.contiguous(), self.weights)
        return product if bias is None else product.add_(bias)


@dataclass(frozen=True, slots=True)
class GroupedFp4:
    """A `GroupedProduct`."""

    weights: Fp4Weights

    def __call__(self, x: Tensor, routes: Routes, by_token: bool) -> Tensor:
        return fp4_matmul(
            x,
            self.weights,
            starts=routes.starts,
            order=routes.order if by_token else None,
            per_token=routes.per_token,
        )
