"""Builds the layers of a model for a device, a format of weights and a tensor-parallel rank.

Queries, keys, values and an MLP's first product are column-parallel: each rank has fewer output features. The
products after them are row-parallel: split by input features, and summed over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from engine.layers.linear_layer import PLAIN, Linear, LinearMethod
from engine.layers.mlp import GatedMLP
from engine.layers.modules import Embedding, GateUp, RMSNorm
from engine.layers.ops import Ops
from engine.layers.sharded import SumLinear, VocabularyHead
from engine.parallel.communicator import Communicator
from engine.spec.model_spec import ModelSpec

__all__ = ["Layers"]


@dataclass(frozen=True, slots=True)
class Layers:
    """Models ask this for every layer whose class depends on device, format or ranks."""

    ops: Ops
    communicator: Communicator
    method: LinearMethod = PLAIN
    """Of the linear layers, the head aside."""

    def linear(self, in_features: int, out_features: int, *, bias: bool) -> Linear:
        """A column-parallel linear layer: `out_features` is this rank's share."""
        return Linear(in_features, out_features, bias=bias, method=self.method)

    def sum_linear(self, in_features: int, out_features: int, *, bias: bool) -> Linear:
        """A row-parallel linear layer: `in_features` is this rank's share."""
        if self.communicator.shard.size == 1:
            return self.linear(in_features, out_features, bias=bias)
        return SumLinear(
            in_features, out_features, bias=bias, communicator=self.communicator, method=self.method
        )

    def mlp(self, spec: ModelSpec) -> nn.Module:
        """The MLP of a layer, x [T, d] -> [T, d]. `spec`: the shape of this rank's part."""
        hidden, inner, bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias
        return GatedMLP(
            GateUp(hidden, inner, bias=bias, ops=self.ops, method=self.method),
            self.sum_linear(inner, hidden, bias=bias),
        )

    def norm(self, features: int, eps: float) -> RMSNorm:
        return RMSNorm(features, eps, self.ops)

    def head(self, embed: Embedding, *, tied: bool) -> Linear:
        """The language-model head: hidden [S, d] -> logits [S, vocab] on rank 0; shares `embed` if tied."""
        vocab, features = embed.weight.shape
        if self.communicator.shard.size > 1:
            return VocabularyHead(embed, self.communicator, tied=tied)
        head = Linear(features, vocab, bias=False)
        if tied:
            head.weight = embed.weight
        return head
