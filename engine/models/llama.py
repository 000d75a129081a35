"""The Llama family: Llama, Mistral, SmolLM2, Qwen2, Qwen3, and their relatives with experts.

The members differ in which projections have biases, in whether queries and keys are normalised, in how
positions are scaled, and in which layers have experts. All of that is in the spec. Layers get the spec of a
rank's part.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.layers.factory import Layers
from engine.layers.ops import Rotation
from engine.layers.rope import rope_table
from engine.models.base import Attention, CausalLM
from engine.models.mlp_table import mlp_names, mlp_table
from engine.models.weight_table import ParamSlice, WeightTable, per_layer
from engine.spec.architectures import QKNorm
from engine.spec.model_spec import ModelSpec
from engine.spec.shard import Cut

__all__ = ["LlamaModel"]


class LlamaModel(CausalLM):
    def __init__(self, spec: ModelSpec, layers: Layers) -> None:
        super().__init__(spec, layers)
        if spec.rope is None:
            raise ValueError("the Llama family needs rotary positions")
        self.ops = layers.ops
        within = [layers.within(f"model.layers.{index}.") for index in range(spec.num_layers)]
        self.layers = nn.ModuleList(
            LlamaLayer(self.part, index, parts, self.mixer(index, parts))
            for index, parts in enumerate(within)
        )
        self.norm = layers.norm(spec)
        self.rope = rope_table(spec.rope, spec.head_dim, spec.max_position, device=self.embed.weight.device)

    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        x: Tensor = self.embed(input_ids)
        rotation = self.ops.rotation(self.rope, positions, x.dtype)
        residual = torch.zeros_like(x)
        for layer in self.layers:
            x, residual = layer(x, residual, rotation, attn)
        return self.norm.add(x, residual)[0]

    def mixer(self, index: int, layers: Layers) -> nn.Module:
        """What a layer has before its MLP: x [T, d], the step's rotation and attention -> [T, d]."""
        return LlamaAttention(self.part, index, layers)

    def weight_table(self) -> WeightTable:
        whole = self.spec
        norms = {
            "input_layernorm": ParamSlice("input_norm"),
            "post_attention_layernorm": ParamSlice("mlp_norm"),
        }
        table = {"model.embed_tokens": ParamSlice("embed"), "model.norm": ParamSlice("norm")}
        if not self.spec.tied_embeddings:
            table["lm_head"] = self.head_param()
        tables = [
            norms | self.mixer_table(index) | mlp_table(whole, self.part, self.shard, index)
            for index in range(whole.num_layers)
        ]
        return table | dict(per_layer(tables, "model.layers.{}.", "layers.{}."))

    def mixer_table(self, index: int) -> dict[str, ParamSlice]:
        """Which modules of a checkpoint's layer fill its `mixer`."""
        whole, shard = self.spec, self.shard
        q, kv = self.part.q_size, self.part.kv_size
        order = self._rotated_first
        heads, kv_heads = shard.rows(whole.q_size, q), shard.rows(whole.kv_size, kv)
        queries = order(heads)
        if whole.output_gate:
            q, queries = 2 * q, self._gates_and_queries()
        layer = {
            "self_attn.q_proj": ParamSlice("attention.qkv", 0, q, cut=queries),
            "self_attn.k_proj": ParamSlice("attention.qkv", q, kv, cut=order(kv_heads)),
            "self_attn.v_proj": ParamSlice("attention.qkv", q + kv, kv, cut=kv_heads),
            "self_attn.o_proj": ParamSlice("attention.out", cut=shard.columns(whole.q_size)),
        }
        if whole.qk_norm is not None:
            each = whole.qk_norm is QKNorm.HEAD
            one_head = Cut(0, whole.head_dim, (range(whole.head_dim),))
            layer |= {
                "self_attn.q_norm": ParamSlice("attention.q_norm", cut=order(one_head if each else heads)),
                "self_attn.k_norm": ParamSlice("attention.k_norm", cut=order(one_head if each else kv_heads)),
            }
        return layer

    def _gates_and_queries(self) -> Cut:
        """This rank's gates, then its queries, from a tensor that has each head's query before its gate."""
        size, extent = self.spec.head_dim, 2 * self.spec.q_size
        (heads,) = self.shard.rows(self.spec.num_heads, self.part.num_heads).stretches
        gates = [range((2 * head + 1) * size, (2 * head + 2) * size) for head in heads]
        queries = tuple(range(2 * head * size, (2 * head + 1) * size) for head in heads)
        return Cut(0, extent, (*gates, *self._rotated_first(Cut(0, extent, queries)).stretches))

    def _rotated_first(self, heads: Cut) -> Cut:
        """`heads` with the features that are rotated in the first part of either half of each head.

        Kernels rotate feature i with feature i + head_dim / 2. Where a model rotates only its first features,
        those come first in both halves, and the table turns the others by an angle of 0.
        """
        size = self.spec.head_dim
        rotated = self.spec.rope.rotated_features(size) if self.spec.rope else size
        if rotated == size:
            return heads
        half, kept = rotated // 2, rotated + (size - rotated) // 2
        pieces = (range(half), range(rotated, kept), range(half, rotated), range(kept, size))
        stretches = (
            range(head + piece.start, head + piece.stop)
            for stretch in heads.stretches
            for head in stretch[::size]
            for piece in pieces
        )
        return Cut(heads.axis, heads.extent, tuple(stretches))

    def ignores(self, name: str) -> bool:
        further = range(self.spec.num_layers, self.spec.num_layers + self.spec.num_draft_layers)
        of_drafts = any(name.startswith(f"model.layers.{layer}.") for layer in further)
        return super().ignores(name) or of_drafts or name.endswith("rotary_emb.inv_freq")


class LlamaLayer(nn.Module):
    def __init__(self, spec: ModelSpec, index: int, layers: Layers, mixer: nn.Module) -> None:
        super().__init__()
        self.input_norm = layers.norm(spec)
        self.attention = mixer
        self.mlp_norm = layers.norm(spec)
        self.mlp = layers.mlp(spec, index, mlp_names(spec))

    def forward(
        self, x: Tensor, residual: Tensor, rotation: Rotation, attn: Attention
    ) -> tuple[Tensor, Tensor]:
        """`x` is the output of the layer below, not yet added to `residual`: the norm fuses the addition."""
        x, residual = self.input_norm.add(x, residual)
        x = self.attention(x, rotation, attn)
        x, residual = self.mlp_norm.add(x, residual)
        return self.mlp(x), residual


class LlamaAttention(nn.Module):
    def __init__(self, spec: ModelSpec, index: int, layers: Layers) -> None:
        """`index`: among the layers with attention."""
        super().__init__()
        self.index = index
        self.num_heads = spec.num_heads
        self.head_dim = spec.head_dim
        self.num_kv_heads = spec.num_kv_heads
        self.gates = spec.q_size if spec.output_gate else 0
        self.qkv = layers.linear(
            *(f"self_attn.{name}_proj" for name in "qkv"),
            in_features=spec.hidden_size,
            out_features=self.gates + spec.q_size + 2 * spec.kv_size,
            bias=spec.qkv_bias,
        )
        self.out = layers.sum_linear(
            "self_attn.o_proj",
            in_features=spec.q_size,
            out_features=spec.hidden_size,
            bias=spec.output_bias,
        )
        self.q_norm = layers.head_norm(spec, spec.num_heads)
        self.k_norm = layers.head_norm(spec, spec.num_kv_heads)

    def forward(self, x: Tensor, rotation: Rotation, attn: Attention) -> Tensor:
        projected = self.qkv(x)
        qkv = projected[:, self.gates :].contiguous().view(len(x), -1, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, _ = qkv.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
            self.q_norm(q)
            self.k_norm(k)
        heads = attn.forward(self.index, qkv, rotation).flatten(1)
        if self.gates:
            heads = heads * projected[:, : self.gates].sigmoid()
        output: Tensor = self.out(heads)
        return output
