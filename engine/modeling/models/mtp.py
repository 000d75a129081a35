"""Heads for multi-token prediction: a decoder layer of the target's kind, over a token's embedding and the
target's final hidden state before it. `MtpSpec` has the source."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.models.base import Attention, CausalLM
from engine.modeling.models.deepseek import DeepseekModel
from engine.modeling.models.draft_head import DraftHead
from engine.modeling.models.llama import LlamaModel
from engine.modeling.models.qwen3_next import Qwen3NextModel
from engine.modeling.models.weight_table import ParamSlice, WeightTable


class MtpHead(DraftHead, LlamaModel):
    """MTP head of GLM-4.5, and the base of the others."""

    def __init__(self, spec: ModelSpec, layers: Layers) -> None:
        if spec.mtp is None:
            raise ValueError("no head for multi-token prediction")
        self._mtp = spec.mtp
        super().__init__(spec, layers)
        size = spec.hidden_size
        self.embedding_norm, self.hidden_norm = layers.norm(spec), layers.norm(spec)
        if spec.mtp.quantized_projection:
            self.projection = layers.linear(
                spec.mtp.projection, in_features=2 * size, out_features=size, bias=False
            )
        else:
            self.projection = Linear(2 * size, size, bias=False)
        del self.head  # see `share`
        if spec.mtp.own_lm_head:
            self.head = Linear(size, spec.vocab_size, bias=False)

    def share(self, target: CausalLM) -> None:
        super().share(target)
        if self._mtp.own_lm_head:
            return
        self.head = target.head
        if target.shard.size > 1:  # the target's head is the part of a rank, but the embedding is whole
            self.head = Linear(self.spec.hidden_size, self.spec.vocab_size, bias=False)
            self.head.weight = target.embed.weight

    def features_of(self, hidden: Tensor) -> Tensor:
        return hidden[:, : self.spec.hidden_size]

    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        normed = [
            self.embedding_norm(self.embed(input_ids)),
            self.hidden_norm(self.features[: len(input_ids)]),
        ]
        x = self.projection(torch.cat(normed, dim=-1))
        rotation = self.rotations(positions, x.dtype)[self.spec.rope_of(0)]
        x, residual = self.layers[0](x, torch.zeros_like(x), rotation, attn)
        x, residual = self.norm.add(x, residual)
        return torch.cat([x, x if self._mtp.normalized else residual], dim=-1)

    @property
    def layer_name(self) -> str:
        return self._mtp.layer

    def weight_table(self) -> WeightTable:
        mtp = self._mtp
        table = {
            mtp.embedding_norm: ParamSlice("embedding_norm"),
            mtp.hidden_norm: ParamSlice("hidden_norm"),
            mtp.projection: ParamSlice("projection"),
            mtp.norm: ParamSlice("norm"),
        }
        if mtp.own_lm_head:
            table["lm_head"] = ParamSlice("head")
        return {**table, **self.layer_tables()}

    def reads(self, name: str) -> bool:
        mtp = self._mtp
        around = {mtp.embedding_norm, mtp.hidden_norm, mtp.projection, mtp.norm}
        own = name.startswith(mtp.layer) or name.rpartition(".")[0] in around
        return (own and not name.startswith(mtp.unused)) or (mtp.own_lm_head and name == "lm_head.weight")

    def ignores(self, name: str) -> bool:
        return CausalLM.ignores(self, name) or name.endswith("rotary_emb.inv_freq")


class DeepseekMtpHead(MtpHead, DeepseekModel):
    """MTP head of DeepSeek-V3, with latent attention."""


class Qwen3NextMtpHead(MtpHead, Qwen3NextModel):
    """MTP head of Qwen3-Next and Qwen3.5, whose layer has attention with an output gate."""
