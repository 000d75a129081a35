"""Layers with a recurrent state, without the state: convolution, gates and norms."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.modeling.layers.linear.linear_layer import weight
from engine.modeling.layers.ops.ops import Ops


class RecurrentWeights(NamedTuple):
    """Weights of a layer that the state's memory applies."""

    kernel: Tensor
    """[features, 1, K], of the causal convolution."""
    bias: Tensor | None = None
    """[features], of the convolution."""
    skip: Tensor | None = None
    """[value heads] float32: factors of values that are added to what the rule returns."""


class Convolution(nn.Module):
    """The weight [features, 1, tokens] of a causal convolution; the state's memory applies it."""

    def __init__(self, features: int, tokens: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = weight(features, 1, tokens)
        self.bias = weight(features) if bias else None


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


class FeatureDecay(nn.Module):
    """How much of each feature of its state a head of a Kimi delta layer keeps at a token.

    In float32 whatever the model's dtype, as `Decay`.
    """

    def __init__(self, heads: int, features: int) -> None:
        """`features`: of a head."""
        super().__init__()
        self.rate = HeadRates(heads)
        self.dt_bias = weight(heads * features, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, heads * features] -> logarithms of decays [T, heads, features]."""
        step = functional.softplus(x.float() + self.dt_bias)
        decays: Tensor = -self.rate.A_log.exp()[:, None] * step.view(len(x), len(self.rate.A_log), -1)
        return decays


class HeadRates(nn.Module):
    """The logarithms of rates, [heads]."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.A_log = weight(heads, dtype=torch.float32)


class SigmoidGatedNorm(nn.Module):
    """Normalises each head, [T, H, D], and multiplies it by the sigmoid of its gate."""

    def __init__(self, features: int, eps: float, ops: Ops) -> None:
        super().__init__()
        self.weight = weight(features)
        self._eps = eps
        self._ops = ops

    def forward(self, heads: Tensor, gate: Tensor) -> Tensor:
        normed = self._ops.rms_norm(heads, self.weight, self._eps)
        gated: Tensor = (normed.float() * gate.float().sigmoid()).to(heads.dtype)
        return gated


class GatedNorm(nn.Module):
    """Normalises each head, [T, H, D], and multiplies it by the SiLU of its gate."""

    def __init__(self, features: int, eps: float, ops: Ops) -> None:
        super().__init__()
        self.weight = weight(features)
        self._eps = eps
        self._ops = ops

    def forward(self, heads: Tensor, gate: Tensor) -> Tensor:
        return self._ops.gated_norm(heads, gate, self.weight, self._eps)


class StateSpace(nn.Module):
    """How much of its state each head of a Mamba2 layer keeps at a token, and how much it learns.

    In float32 whatever the model's dtype, as `Decay`.
    """

    def __init__(self, heads: int, smallest_step: float) -> None:
        super().__init__()
        self.A_log = weight(heads, dtype=torch.float32)
        self.dt_bias = weight(heads, dtype=torch.float32)
        self.D = weight(heads, dtype=torch.float32)
        self._smallest = smallest_step

    def forward(self, rates: Tensor) -> tuple[Tensor, Tensor]:
        """rates [T, heads] -> logarithms of decays, and steps, both [T, heads] float32."""
        step = functional.softplus(rates.float() + self.dt_bias).clamp(min=self._smallest)
        return -self.A_log.exp() * step, step


class GroupNorm(nn.Module):
    """Multiplies features by the SiLU of their gate, then normalises each group: [T, groups * n]."""

    def __init__(self, groups: int, features: int, eps: float) -> None:
        """`features`: of a group."""
        super().__init__()
        self.weight = weight(groups * features)
        self._sizes = groups, features
        self._eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        gated = (x.float() * functional.silu(gate.float())).view(len(x), *self._sizes)
        scale = torch.rsqrt(gated.square().mean(dim=2, keepdim=True) + self._eps)
        normed: Tensor = (gated * scale).flatten(1).to(x.dtype) * self.weight
        return normed
