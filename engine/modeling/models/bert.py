"""BERT and RoBERTa: encoders with absolute positions, and norms after attention and MLP.

Token i of the second kind (`token_type_ids` 1) has the id i + words, so that kinds go wherever ids go.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.layer_options import Head
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.modules import Embedding, LayerNorm
from engine.modeling.models.base import Attention, CausalLM
from engine.modeling.models.weight_table import ParamSlice, WeightTable, per_layer

_PREFIXES: Final = ("bert.", "roberta.", "model.")
_UNUSED: Final = ("pooler.", "cls.", "lm_head.", "embeddings.position_ids", "embeddings.token_type_ids")
"""Modules of checkpoints that embeddings do not need."""


class BertModel(CausalLM):
    def __init__(self, spec: ModelSpec, layers: Layers) -> None:
        super().__init__(spec, layers)
        assert spec.encoder is not None
        self.encoder = spec.encoder
        self.embed_position = Embedding(spec.encoder.positions, spec.hidden_size)
        self.embed_type = Embedding(spec.encoder.token_types, spec.hidden_size)
        self.norm = LayerNorm(spec.hidden_size, spec.norm_eps)
        self.layers = nn.ModuleList(
            BertLayer(self.part, index, layers.within(f"encoder.layer.{index}."))
            for index in range(spec.num_layers)
        )

    @staticmethod
    def num_embeddings(spec: ModelSpec) -> int:
        assert spec.encoder is not None
        return spec.vocab_size // spec.encoder.token_types

    def make_head(self, layers: Layers) -> nn.Module:
        if self.spec.head is Head.LABELS:
            return LabelHead(self.spec.hidden_size, len(self.spec.labels))
        return super().make_head(layers)

    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        words = len(self.embed.weight)
        x = self.embed(input_ids % words) + self.embed_type(input_ids // words)
        x = self.norm(x + self.embed_position(positions + self.encoder.first_position))
        for layer in self.layers:
            x = layer(x, attn)
        output: Tensor = x
        return output

    def weight_table(self) -> WeightTable:
        whole, part, shard = self.spec, self.part, self.shard
        q, kv = part.q_size, part.kv_size
        heads, kv_heads = shard.rows(whole.q_size, q), shard.rows(whole.kv_size, kv)
        inner = whole.intermediate_size
        layer = {
            "attention.self.query": ParamSlice("qkv", 0, q, cut=heads),
            "attention.self.key": ParamSlice("qkv", q, kv, cut=kv_heads),
            "attention.self.value": ParamSlice("qkv", q + kv, kv, cut=kv_heads),
            "attention.output.dense": ParamSlice("out", cut=shard.columns(whole.q_size)),
            "attention.output.LayerNorm": ParamSlice("attention_norm"),
            "intermediate.dense": ParamSlice("up", cut=shard.rows(inner, part.intermediate_size)),
            "output.dense": ParamSlice("down", cut=shard.columns(inner)),
            "output.LayerNorm": ParamSlice("mlp_norm"),
        }
        table = {
            "embeddings.word_embeddings": ParamSlice("embed"),
            "embeddings.position_embeddings": ParamSlice("embed_position"),
            "embeddings.token_type_embeddings": ParamSlice("embed_type"),
            "embeddings.LayerNorm": ParamSlice("norm"),
        }
        if whole.head is Head.LABELS:
            first, last = self.encoder.head_modules
            table |= {first: ParamSlice("head.dense"), last: ParamSlice("head.labels")}
        return table | dict(per_layer([layer] * whole.num_layers, "encoder.layer.{}.", "layers.{}."))

    def source_name(self, name: str) -> str:
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        # TensorFlow's names, which early conversions kept.
        return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")

    def ignores(self, name: str) -> bool:
        return super().ignores(name) or name.startswith(_UNUSED)


class LabelHead(nn.Module):
    """labels(tanh(dense(x))): x [S, d] -> [S, labels]."""

    def __init__(self, features: int, labels: int) -> None:
        super().__init__()
        self.dense = Linear(features, features, bias=True)
        self.labels = Linear(features, labels, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.labels(torch.tanh(self.dense(x)))
        return output


class BertLayer(nn.Module):
    def __init__(self, spec: ModelSpec, index: int, layers: Layers) -> None:
        super().__init__()
        hidden, inner = spec.hidden_size, spec.intermediate_size
        self.index = index
        self.head_dim = spec.head_dim
        projections = [f"attention.self.{name}" for name in ("query", "key", "value")]
        self.qkv = layers.linear(
            *projections, in_features=hidden, out_features=spec.q_size + 2 * spec.kv_size, bias=True
        )
        self.out = layers.sum_linear(
            "attention.output.dense", in_features=spec.q_size, out_features=hidden, bias=True
        )
        self.attention_norm = LayerNorm(hidden, spec.norm_eps)
        self.up = layers.linear("intermediate.dense", in_features=hidden, out_features=inner, bias=True)
        self.down = layers.sum_linear("output.dense", in_features=inner, out_features=hidden, bias=True)
        self.mlp_norm = LayerNorm(hidden, spec.norm_eps)

    def forward(self, x: Tensor, attn: Attention) -> Tensor:
        qkv = self.qkv(x).view(len(x), -1, self.head_dim)
        x = self.attention_norm(x + self.out(attn.forward(self.index, qkv, None).flatten(1)))
        output: Tensor = self.mlp_norm(x + self.down(functional.gelu(self.up(x))))
        return output
