"""Builds the layers of a model for a device, a format of weights and a tensor-parallel rank.

Queries, keys, values and an MLP's first product are column-parallel: each rank has fewer output features. The
products after them are row-parallel: split by input features, and summed over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from engine.layers.experts import ExpertMLP, ExpertStack, LiveRows, Router
from engine.layers.linear_layer import PLAIN, Linear, LinearMethod
from engine.layers.mlp import GatedMLP
from engine.layers.modules import AllHeadsNorm, Embedding, GateUp, HeadNorm, RMSNorm
from engine.layers.ops import Ops
from engine.layers.sharded import SumLinear, VocabularyHead
from engine.parallel.communicator import Communicator
from engine.spec.architectures import QKNorm
from engine.spec.expert_spec import ExpertSpec
from engine.spec.model_spec import ModelSpec

__all__ = ["Layers"]


@dataclass(frozen=True, slots=True)
class Layers:
    """Models ask this for every layer whose class depends on device, format or ranks."""

    ops: Ops
    communicator: Communicator
    method: LinearMethod = PLAIN
    """Of the linear layers, the head aside."""
    live_rows: LiveRows = field(default_factory=LiveRows)

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

    def mlp(self, spec: ModelSpec, layer: int) -> nn.Module:
        """The MLP of a layer, x [T, d] -> [T, d], or its experts. `spec`: the shape of this rank's part."""
        if spec.experts is not None and spec.has_experts(layer):
            return self._experts(spec, spec.experts)
        hidden, inner, bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias
        return GatedMLP(
            GateUp(hidden, inner, bias=bias, ops=self.ops, method=self.method),
            self.sum_linear(inner, hidden, bias=bias),
        )

    def _experts(self, spec: ModelSpec, experts: ExpertSpec) -> ExpertMLP:
        hidden, inner = spec.hidden_size, experts.intermediate_size
        shared = None
        if size := experts.shared_size:
            shared = GatedMLP(
                GateUp(hidden, size, bias=False, ops=self.ops, method=self.method),
                self.linear(size, hidden, bias=False),  # summed over ranks with the other experts' outputs
            )
        return ExpertMLP(
            router=Router(hidden, experts, self.ops, self.live_rows),
            gate_up=ExpertStack(experts.count, hidden, 2 * inner, self.method),
            down=ExpertStack(experts.count, inner, hidden, self.method),
            shared=shared,
            shared_gate=Linear(hidden, 1, bias=False) if experts.shared_gate else None,
            ops=self.ops,
            communicator=self.communicator,
        )

    def norm(self, features: int, eps: float) -> RMSNorm:
        return RMSNorm(features, eps, self.ops)

    def head_norm(self, spec: ModelSpec, heads: int) -> nn.Module | None:
        """Normalises this rank's `heads` of queries or of keys in place; None if the model does not."""
        match spec.qk_norm:
            case None:
                return None
            case QKNorm.HEAD:
                return HeadNorm(spec.head_dim, spec.norm_eps, self.ops)
            case QKNorm.ALL_HEADS:
                return AllHeadsNorm(heads * spec.head_dim, spec.norm_eps, self.communicator)

    def head(self, embed: Embedding, *, tied: bool) -> Linear:
        """The language-model head: hidden [S, d] -> logits [S, vocab] on rank 0; shares `embed` if tied."""
        vocab, features = embed.weight.shape
        if self.communicator.shard.size > 1:
            return VocabularyHead(embed, self.communicator, tied=tied)
        head = Linear(features, vocab, bias=False)
        if tied:
            head.weight = embed.weight
        return head
