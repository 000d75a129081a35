"""The layers of models: inference only, parameters are left uninitialised for the loader."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from engine.layers.linear_layer import PLAIN, Linear, LinearMethod, PlainWeight, weight
from engine.layers.ops import Ops

__all__ = ["Embedding", "GateUp", "LayerNorm", "RMSNorm"]


class GateUp(Linear):
    """The first half of a gated MLP: x [T, d] -> silu(gate) * up, [T, I]. The gate's rows come first."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, ops: Ops, method: LinearMethod = PLAIN
    ) -> None:
        """`out_features`: I, of gate and up each."""
        super().__init__(in_features, 2 * out_features, bias=bias, method=method)
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None and isinstance(self.method, PlainWeight):
            fused = self.ops.gated_product(x, self.weight)
            if fused is not None:
                return fused
        return self.ops.silu_mul(super().forward(x))


class Embedding(nn.Module):
    """ids [T] -> [T, d]. `weight` is [rows, d]."""

    def __init__(self, rows: int, features: int) -> None:
        super().__init__()
        self.weight = weight(rows, features)

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)


class RMSNorm(nn.Module):
    def __init__(self, features: int, eps: float, ops: Ops) -> None:
        super().__init__()
        self.weight = weight(features)
        self.eps = eps
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        """x [..., features] -> the same shape."""
        return self.ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm of x + residual, x + residual); both arguments are consumed."""
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps)


class LayerNorm(nn.Module):
    def __init__(self, features: int, eps: float) -> None:
        super().__init__()
        self.weight = weight(features)
        self.bias = weight(features)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [T, features] -> the same shape."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
