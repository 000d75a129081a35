"""Builds the layers of a model for a device, a format of weights and a tensor-parallel rank.

Queries, keys, values and an MLP's first product are column-parallel: each rank has fewer output features. The
products after them are row-parallel: split by input features, and summed over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import nn

from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.expert_spec import ExpertSpec
from engine.model_config.parts.layer_options import QKNorm
from engine.model_config.quantization import Quantization
from engine.modeling.layers.experts import (
    ExpertMLP,
    ExpertRouter,
    ExpertStack,
    LatentProjections,
    LiveRows,
    ScaledRouter,
)
from engine.modeling.layers.formats.choose import method_of
from engine.modeling.layers.linear.linear_layer import PLAIN, Linear, LinearMethod
from engine.modeling.layers.mlp import GatedMLP, MlpNames
from engine.modeling.layers.modules import AllHeadsNorm, Embedding, GateUp, HeadNorm, RMSNorm, Up
from engine.modeling.layers.ops.ops import Ops
from engine.modeling.layers.sharded import SumLinear, VocabularyHead
from engine.parallel.communicator import Communicator


@dataclass(frozen=True, slots=True)
class Layers:
    """Models ask this for every layer whose class depends on device, format or ranks."""

    ops: Ops
    communicator: Communicator
    quantization: Quantization | None = None
    prefix: str = ""
    """Prefix of the checkpoint's module names."""
    live_rows: LiveRows = field(default_factory=LiveRows)

    def within(self, prefix: str) -> Layers:
        """Builds layers whose names in a checkpoint begin with `prefix`."""
        return replace(self, prefix=self.prefix + prefix)

    def linear(
        self,
        *sources: str,
        in_features: int,
        out_features: int,
        bias: bool,
        shares: int = 1,
        rearranged: bool = False,
    ) -> Linear:
        """A column-parallel linear layer: `out_features` is this rank's share.

        `sources`: the modules of the checkpoint that it merges. `shares`, `rearranged`: see `method_of`.
        """
        method = self._method(*sources, shares=shares, rearranged=rearranged)
        return Linear(in_features, out_features, bias=bias, method=method)

    def sum_linear(self, source: str, *, in_features: int, out_features: int, bias: bool) -> Linear:
        """A row-parallel linear layer: `in_features` is this rank's share."""
        method = self._method(source, shares=self.communicator.shard.size)
        if self.communicator.shard.size == 1:
            return Linear(in_features, out_features, bias=bias, method=method)
        return SumLinear(in_features, out_features, bias=bias, communicator=self.communicator, method=method)

    def _method(self, *sources: str, shares: int = 1, rearranged: bool = False) -> LinearMethod:
        """The format of the merged modules `sources`.

        Raises UnsupportedModel if they have different formats.
        """
        if self.quantization is None:
            return PLAIN
        formats = {self.prefix + source: self.quantization.of(self.prefix + source) for source in sources}
        first, *others = dict.fromkeys(formats.values())
        if None in formats.values() and others:
            plain = ", ".join(module for module, format in formats.items() if format is None)
            raise UnsupportedModel(
                f"{plain} is not quantized, but the projections merged with it are; use a checkpoint that"
                " leaves out all of them or none"
            )
        if others:
            raise UnsupportedModel(
                f"{', '.join(formats)} are merged here, but have different formats; use a checkpoint that has"
                " one format for all of them"
            )
        return PLAIN if first is None else method_of(first, shares, rearranged=rearranged)

    def stored_method(self, source: str) -> LinearMethod:
        """The format in which the checkpoint has `source`, which is not quantized at load."""
        online = self.quantization is not None and self.quantization.online
        return PLAIN if online else self._method(source)

    def stores_quantized(self, source: str) -> bool:
        """Whether the checkpoint has `source` quantized."""
        return self.stored_method(source) is not PLAIN

    def mlp(self, spec: ModelSpec, layer: int, names: MlpNames) -> nn.Module:
        """The MLP of a layer, x [T, d] -> [T, d], or its experts. `spec`: the shape of this rank's part."""
        if spec.experts is not None and spec.has_experts(layer):
            return self.experts(spec, spec.experts, names)
        hidden, inner, bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias
        return GatedMLP(
            self._gate_up(spec, inner, names.dense, bias=bias),
            self.sum_linear(names.dense.down, in_features=inner, out_features=hidden, bias=bias),
        )

    def _gate_up(self, spec: ModelSpec, inner: int, names: MlpNames, *, bias: bool) -> GateUp | Up:
        method = self._method(*names.first)
        kind = GateUp if spec.gated_mlp else Up
        return kind(
            spec.hidden_size, inner, bias=bias, activation=spec.activation, ops=self.ops, method=method
        )

    def experts(self, spec: ModelSpec, experts: ExpertSpec, names: MlpNames) -> ExpertMLP:
        """The routed experts of a layer, and the shared one if it is not beside them."""
        hidden, inner = spec.hidden_size, experts.intermediate_size
        shard = self.communicator.shard
        within = shard.within_experts(experts)
        shared = None
        if (size := experts.shared_size) and not experts.beside_mlp:
            of_shared = names.shared
            shared = GatedMLP(
                self._gate_up(spec, size, of_shared, bias=False),
                # Not summed over ranks: that is done for all experts' outputs together.
                self.linear(
                    of_shared.down, in_features=size, out_features=hidden, bias=False, shares=shard.size
                ),
            )
        first, width = names.expert(0), experts.latent or hidden
        return ExpertMLP(
            router=self._router(spec, experts),
            gate_up=ExpertStack(
                experts, width, (2 if spec.gated_mlp else 1) * inner, self._method(*first.first)
            ),
            down=ExpertStack(
                experts,
                inner,
                width,
                self._method(first.down, shares=within.size),
                adds_bias=within.is_first_rank,  # once, not once per rank
            ),
            activation=spec.activation,
            latent=self._latent_projections(hidden, experts),
            shared=shared,
            shared_gate=Linear(hidden, 1, bias=False) if experts.shared_gate else None,
            ops=self.ops,
            communicator=self.communicator,
        )

    def _latent_projections(self, hidden: int, experts: ExpertSpec) -> LatentProjections | None:
        if experts.latent is None:
            return None
        return LatentProjections(
            self.linear("mixer.fc1_latent_proj", in_features=hidden, out_features=experts.latent, bias=False),
            self.linear("mixer.fc2_latent_proj", in_features=experts.latent, out_features=hidden, bias=False),
        )

    def _router(self, spec: ModelSpec, experts: ExpertSpec) -> ExpertRouter:
        if not experts.beside_mlp:
            return ExpertRouter(spec.hidden_size, experts, self.ops, self.live_rows)
        return ScaledRouter(spec.hidden_size, experts, self.ops, self.live_rows, eps=spec.norm_eps)

    def norm(self, spec: ModelSpec) -> RMSNorm:
        """Normalises hidden states."""
        return RMSNorm(spec.hidden_size, spec.norm_eps, self.ops, centred=spec.centred_norms)

    def head_norm(self, spec: ModelSpec, heads: int) -> nn.Module | None:
        """Normalises this rank's `heads` of queries or of keys in place; None if the model does not."""
        match spec.qk_norm:
            case None:
                return None
            case QKNorm.HEAD:
                return HeadNorm(spec.head_dim, spec.norm_eps, self.ops, centred=spec.centred_norms)
            case QKNorm.ALL_HEADS:
                return AllHeadsNorm(heads * spec.head_dim, spec.norm_eps, self.communicator)

    def head(self, embed: Embedding, *, tied: bool) -> Linear:
        """The language-model head: hidden [S, d] -> logits [S, vocab] on rank 0; shares `embed` if tied."""
        vocab, features = embed.weight.shape
        if not tied and self.stores_quantized("lm_head"):
            if self.communicator.shard.size > 1:
                raise UnsupportedModel(
                    "a quantized lm_head cannot be divided among ranks; use one rank, or a checkpoint whose"
                    " quantization_config ignores it"
                )
            return Linear(features, vocab, bias=False, method=self.stored_method("lm_head"))
        if self.communicator.shard.size > 1:
            return VocabularyHead(embed, self.communicator, tied=tied)
        head = Linear(features, vocab, bias=False)
        if tied:
            head.weight = embed.weight
        return head
