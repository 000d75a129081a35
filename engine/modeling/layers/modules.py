"""The layers of models: inference only, parameters are left uninitialised for the loader."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.model_config.parts.layer_options import Activation
from engine.modeling.layers.linear.linear_layer import PLAIN, Linear, LinearMethod, Slot, weight
from engine.modeling.layers.ops.ops import Ops
from engine.parallel.communicator import Communicator


class GateUp(Linear):
    """The first half of a gated MLP: x [T, d] -> the activation, [T, I]. The gate's rows come first."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        activation: Activation,
        ops: Ops,
        method: LinearMethod = PLAIN,
    ) -> None:
        """`out_features`: I, of gate and up each."""
        super().__init__(in_features, 2 * out_features, bias=bias, method=method)
        self.activation = activation
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        adapted = self.addition is not None and not self.addition.is_idle
        may_fuse = self.bias is None and not adapted and self.activation is Activation.SILU
        fused = self.method.gated(self, x) if may_fuse else None
        return self.ops.gate(super().forward(x), self.activation) if fused is None else fused


class Up(Linear):
    """The first half of an MLP without a gate: x [T, d] -> the activation, [T, I]."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        activation: Activation,
        ops: Ops,
        method: LinearMethod = PLAIN,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, method=method)
        self.activation = activation
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.gate(super().forward(x), self.activation)


class Embedding(nn.Module):
    """ids [T] -> [T, d]. `weight` is [rows, d]."""

    def __init__(self, rows: int, features: int) -> None:
        super().__init__()
        self.weight = weight(rows, features)

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)


class RMSNorm(nn.Module):
    def __init__(self, features: int, eps: float, ops: Ops, *, centred: bool = False) -> None:
        """`centred`: the checkpoint stores the difference of the weight to 1."""
        super().__init__()
        self.weight = weight(features)
        self.eps = eps
        self.ops = ops
        self._centred = centred

    def slots(self) -> list[Slot]:
        """The tensor that a checkpoint holds for this layer."""
        return [_norm_slot(self.weight, centred=self._centred)]

    def forward(self, x: Tensor) -> Tensor:
        """x [..., features] -> the same shape."""
        return self.ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm of x + residual, x + residual); both arguments are consumed."""
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps)


class NoNorm(nn.Module):
    """In place of an RMSNorm, where a layer normalises its outputs only."""

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(x + residual, x + residual), in memory of their own; both arguments are consumed."""
        residual = residual.add_(x)
        return x.copy_(residual), residual


def _norm_slot(target: Tensor, *, centred: bool) -> Slot:
    return Slot("weight", target, convert=(lambda stored: stored.float() + 1.0) if centred else None)


class HeadNorm(nn.Module):
    """Normalises each head of queries or of keys, [T, H, D], in place."""

    def __init__(self, head_dim: int, eps: float, ops: Ops, *, centred: bool = False) -> None:
        """`centred`: as in `RMSNorm`."""
        super().__init__()
        self.weight = weight(head_dim)
        self.eps = eps
        self.ops = ops
        self._centred = centred

    def slots(self) -> list[Slot]:
        """The tensor that a checkpoint holds for this layer."""
        return [_norm_slot(self.weight, centred=self._centred)]

    def forward(self, heads: Tensor) -> None:
        self.ops.norm_heads(heads, self.weight, self.eps)


class AllHeadsNorm(nn.Module):
    """Normalises all heads of queries or of keys together, [T, H, D], in place; over all ranks' heads."""

    def __init__(self, features: int, eps: float, communicator: Communicator) -> None:
        """`features`: of this rank's heads."""
        super().__init__()
        self.weight = weight(features)
        self.eps = eps
        self._communicator = communicator
        # Where neighbours hold the same heads, both sums have them as often.
        self._total = features * communicator.shard.size

    def forward(self, heads: Tensor) -> None:
        flat = heads.flatten(1).float()
        squares = self._communicator.all_reduce(flat.square().sum(dim=1, keepdim=True))
        flat *= torch.rsqrt(squares / self._total + self.eps)
        heads.copy_((flat * self.weight).view(heads.shape))


class LayerNorm(nn.Module):
    def __init__(self, features: int, eps: float) -> None:
        super().__init__()
        self.weight = weight(features)
        self.bias = weight(features)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [T, features] -> the same shape."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
