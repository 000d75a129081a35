"""A gated delta net without its state: projections, gates and norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.modeling.layers.linear.linear_layer import weight
from engine.modeling.layers.ops.ops import Ops


class Convolution(nn.Module):
    """The weight [features, 1, tokens] of a causal convolution; the state's memory applies it."""

    def __init__(self, features: int, tokens: int) -> None:
        super().__init__()
        self.weight = weight(features, 1, tokens)


class Decay(nn.Module):
    """How much of its state each value head keeps at a token, and how much it learns, from projections.

    In float32 whatever the model's dtype: the decays of all tokens multiply.
    """

    def __init__(self, heads: int, ops: Ops) -> None:
        super().__init__()
        self._ops = ops
        self.A_log = weight(heads, dtype=torch.float32)
        self.dt_bias = weight(heads, dtype=torch.float32)

    def forward(self, rates: Tensor) -> tuple[Tensor, Tensor]:
        """rates [T, 2 * heads] -> logarithms of decays, and learning rates: see `Ops.delta_rates`."""
        return self._ops.delta_rates(rates, self.A_log, self.dt_bias)


class GatedNorm(nn.Module):
    """Normalises each head, [T, H, D], and multiplies it by the SiLU of its gate."""

    def __init__(self, features: int, eps: float, ops: Ops) -> None:
        super().__init__()
        self.weight = weight(features)
        self._eps = eps
        self._ops = ops

    def forward(self, heads: Tensor, gate: Tensor) -> Tensor:
        return self._ops.gated_norm(heads, gate, self.weight, self._eps)
