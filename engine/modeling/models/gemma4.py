"""Gemma 4: heads of two sizes, layers that read the keys and values of others, embeddings for every layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.per_layer_spec import PerLayerSpec
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.linear.linear_layer import weight
from engine.modeling.layers.modules import Embedding, RMSNorm
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.models.attention_table import attention_table
from engine.modeling.models.base import Attention
from engine.modeling.models.llama import LlamaLayer
from engine.modeling.models.mlp_table import mlp_names, mlp_table
from engine.modeling.models.rearranged import StackedExpertsModel
from engine.modeling.models.weight_table import ParamSlice, WeightTable

_OF_KEYS: Final = re.compile(r"\.layers\.(\d+)\.self_attn\.(?:k_proj|v_proj|k_norm|v_norm)\.")
_EXPERT_NORMS: Final = {
    "post_feedforward_layernorm_1": "dense_output_norm",
    "pre_feedforward_layernorm_2": "experts_norm",
    "post_feedforward_layernorm_2": "experts_output_norm",
}
_PER_LAYER: Final = {
    "per_layer_input_gate": "per_layer.gate",
    "per_layer_projection": "per_layer.projection",
    "post_per_layer_input_norm": "per_layer.norm",
}
_EMBEDDINGS: Final = {
    "model.embed_tokens_per_layer": "per_layer.embed",
    "model.per_layer_model_projection": "per_layer.projection",
    "model.per_layer_projection_norm": "per_layer.norm",
}


class Gemma4Model(StackedExpertsModel):
    def __init__(self, spec: ModelSpec, layers: Layers) -> None:
        super().__init__(spec, layers)
        self.per_layer = None if spec.per_layer is None else PerLayerInputs(spec, spec.per_layer, layers)

    def layer(self, index: int, layers: Layers) -> nn.Module:
        return Gemma4Layer(self.part.of_layer(index), index, layers, self.mixer(index, layers))

    def mixer(self, index: int, layers: Layers) -> nn.Module:
        return Gemma4Attention(self.part.of_layer(index), index, layers, self.part.attention.projected(index))

    def layer_inputs(self, input_ids: Tensor, x: Tensor) -> Sequence[tuple[Tensor, ...]]:
        if self.per_layer is None:
            return super().layer_inputs(input_ids, x)
        if self.media is not None:
            input_ids = input_ids.index_fill(0, self.media.rows, self.per_layer.of_images)
        inputs: Tensor = self.per_layer(input_ids, x)
        return [(of_layer,) for of_layer in inputs.unbind(1)]

    def weight_table(self) -> WeightTable:
        embeddings = {} if self.per_layer is None else _EMBEDDINGS
        return {**super().weight_table(), **{name: ParamSlice(place) for name, place in embeddings.items()}}

    def mixer_table(self, index: int) -> dict[str, ParamSlice]:
        table = attention_table(self.spec.of_layer(index), self.part.of_layer(index), self.shard)
        projected = self.part.attention.projected(index)
        left_out = {f"self_attn.{name}_proj" for name in "qkv" if name not in projected}
        if "k" not in projected:
            left_out.add("self_attn.k_norm")
        return {name: place for name, place in table.items() if name not in left_out}

    def mlp_table(self, index: int) -> dict[str, ParamSlice]:
        whole, part = (replace(spec.of_layer(index), experts=None) for spec in (self.spec, self.part))
        table = mlp_table(whole, part, self.shard, index)
        further = {"layer_scalar": "layer_scalar"}
        if self.spec.per_layer is not None:
            further |= _PER_LAYER
        if self.spec.experts is not None:
            for name, place in mlp_table(self.spec, self.part, self.shard, index).items():
                table[name] = replace(place, module=f"experts{place.module.removeprefix('mlp')}")
            further |= _EXPERT_NORMS | {"router": "experts.router.scales"}
        return table | {name: ParamSlice(place) for name, place in further.items()}

    def source_name(self, name: str) -> str:
        name = super().source_name(name)
        return f"{name}.weight" if name.endswith(".layer_scalar") else name

    def ignores(self, name: str) -> bool:
        """Layers that read the keys and values of others may be stored with projections for their own."""
        found = _OF_KEYS.search(name)
        reads = found is not None and self.spec.attention.source(int(found[1])) is not None
        return reads or super().ignores(name)


class Scalar(nn.Module):
    """One learned number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = weight(1)


class PerLayerInputs(nn.Module):
    """Token ids [T] and their scaled embeddings [T, d] -> what enters each layer, [T, layers, features]."""

    def __init__(self, spec: ModelSpec, per_layer: PerLayerSpec, layers: Layers) -> None:
        super().__init__()
        features = spec.num_layers * per_layer.features
        self.embed = Embedding(per_layer.vocab_size, features)
        self.projection = layers.linear(
            "model.per_layer_model_projection",
            in_features=spec.hidden_size,
            out_features=features,
            bias=False,
        )
        self.norm = RMSNorm(per_layer.features, spec.norm_eps, layers.ops)
        self._shape = (spec.num_layers, per_layer.features)
        self.of_images = per_layer.of_images

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        of_tokens = self.embed(ids).unflatten(1, self._shape) * self._shape[1] ** 0.5
        of_context = self.projection(x) * x.shape[1] ** -0.5
        inputs: Tensor = (self.norm(of_context.unflatten(1, self._shape)) + of_tokens) * 2.0**-0.5
        return inputs


class PerLayerGate(nn.Module):
    """Hidden states [T, d], and the features [T, P] that enter the layer -> what is added to them."""

    def __init__(self, spec: ModelSpec, per_layer: PerLayerSpec, layers: Layers) -> None:
        super().__init__()
        hidden, features = spec.hidden_size, per_layer.features
        self.gate = layers.linear(
            "per_layer_input_gate", in_features=hidden, out_features=features, bias=False
        )
        self.projection = layers.linear(
            "per_layer_projection", in_features=features, out_features=hidden, bias=False
        )
        self.norm = layers.norm(spec)
        self._ops = layers.ops

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        added: Tensor = self.norm(self.projection(self._ops.gelu(self.gate(x)) * features))
        return added


class Gemma4Layer(LlamaLayer):
    def __init__(self, spec: ModelSpec, index: int, layers: Layers, mixer: nn.Module) -> None:
        """`spec`: that of this layer, as `ModelSpec.of_layer` has it."""
        super().__init__(replace(spec, experts=None), index, layers, mixer)
        self.layer_scalar = Scalar()
        self.per_layer = None if spec.per_layer is None else PerLayerGate(spec, spec.per_layer, layers)
        self.experts = None
        if spec.experts is not None:
            self.experts = layers.experts(spec, spec.experts, mlp_names(spec))
            self.dense_output_norm = layers.norm(spec)
            self.experts_norm = layers.norm(spec)
            self.experts_output_norm = layers.norm(spec)

    def forward(
        self,
        x: Tensor,
        residual: Tensor,
        rotation: Rotation | None,
        attn: Attention,
        features: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert self.attention_output_norm is not None
        assert self.mlp_output_norm is not None
        x, residual = self.input_norm.add(x, residual)
        x = self.attention_output_norm(self.attention(x, rotation, attn))
        x, residual = self.mlp_norm.add(x, residual)
        x = self.mlp_output_norm(self._mlps(x, residual))
        if self.per_layer is not None:
            residual = residual + x
            x = self.per_layer(residual, features)
        scale = self.layer_scalar.weight
        return x * scale, residual * scale

    def _mlps(self, x: Tensor, residual: Tensor) -> Tensor:
        """`x`: the normalised `residual`, which the experts normalise in their own way."""
        output: Tensor = self.mlp(x)
        if self.experts is None:
            return output
        routed = self.experts(self.experts_norm(residual), routed_by=residual)
        both: Tensor = self.dense_output_norm(output) + self.experts_output_norm(routed)
        return both


class Gemma4Attention(nn.Module):
    """Values are normalised like keys, without a weight, and not rotated."""

    def __init__(self, spec: ModelSpec, index: int, layers: Layers, projected: str) -> None:
        """`spec`: that of this layer. `projected`: which of q, k and v are."""
        super().__init__()
        self.index = index
        self._shape = (-1, spec.head_dim)
        self._sizes = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
        self._eps = spec.norm_eps
        self.qkv = layers.linear(
            *(f"self_attn.{name}_proj" for name in projected),
            in_features=spec.hidden_size,
            out_features=spec.q_size + (len(projected) - 1) * spec.kv_size,
            bias=spec.qkv_bias,
        )
        self.out = layers.sum_linear(
            "self_attn.o_proj",
            in_features=spec.q_size,
            out_features=spec.hidden_size,
            bias=spec.output_bias,
        )
        self.q_norm = layers.head_norm(spec, spec.num_heads)
        self.k_norm = layers.head_norm(spec, spec.num_kv_heads) if "k" in projected else None
        self._values_are_keys = projected == "qk"

    def forward(self, x: Tensor, rotation: Rotation | None, attn: Attention) -> Tensor:
        heads = self.qkv(x).unflatten(1, self._shape).contiguous()
        assert self.q_norm is not None
        self.q_norm(heads[:, : self._sizes[0]])
        if self.k_norm is not None:
            if self._values_are_keys:
                heads = torch.cat((heads, heads[:, self._sizes[0] :]), dim=1)
            _, keys, values = heads.split(self._sizes, dim=1)
            self.k_norm(keys)
            values.copy_(functional.rms_norm(values, values.shape[-1:], eps=self._eps))
        output: Tensor = self.out(attn.forward(self.index, heads, rotation).flatten(1))
        return output
