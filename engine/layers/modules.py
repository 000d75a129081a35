"""The layers of models: inference only, parameters are left uninitialised for the loader."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.layers.linear import linear
from engine.layers.onednn import packed
from engine.layers.ops import Ops
from engine.layers.panels import Panels, fastest_panels
from engine.layers.row_blocks import row_blocks

__all__ = ["Embedding", "GateUp", "LayerNorm", "Linear", "RMSNorm", "weight"]


def weight(*shape: int) -> nn.Parameter:
    """An uninitialised parameter, in torch's current default dtype and device; the loader fills it."""
    return nn.Parameter(torch.empty(shape), requires_grad=False)


class Linear(nn.Module):
    """x [T, in] -> [T, out]. `weight` is [out, in], as checkpoints store it."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = weight(out_features, in_features)
        self.bias = weight(out_features) if bias else None
        self._blocks: Tensor | None = None
        """A view of the packed weight, for single rows."""
        self._panels: Panels | None = None
        """A view of the packed weight, for the row counts at which it is faster."""

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, self.weight, bias, self._blocks, self._panels)

    def pack(self) -> None:
        """Repack the weight, once it is final, in the layout that the device multiplies fastest."""
        plain = self.weight.detach()
        self.weight = nn.Parameter(packed(plain), requires_grad=False)
        self._blocks = row_blocks(self.weight, plain)
        self._panels = fastest_panels(self.weight, plain)


class GateUp(Linear):
    """The first half of a gated MLP: x [T, d] -> silu(gate) * up, [T, I]. The gate is first in `weight`."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, ops: Ops) -> None:
        """`out_features`: I, of gate and up each."""
        super().__init__(in_features, 2 * out_features, bias=bias)
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        fused = self.ops.gated_product(x, self.weight) if self.bias is None else None
        return self.ops.silu_mul(super().forward(x)) if fused is None else fused


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
