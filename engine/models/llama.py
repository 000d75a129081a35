"""The Llama family: Llama, Mistral, SmolLM2, Qwen2 and Qwen3.

The members differ in which projections have biases, in whether queries and keys are normalised, and in how
positions are scaled. All of that is in the spec. Layers get the spec of a rank's part.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.layers.factory import Layers
from engine.layers.ops import Rotation
from engine.layers.rope import rope_table
from engine.models.base import Attention, CausalLM
from engine.models.weight_table import ParamSlice, WeightTable, per_layer
from engine.spec.model_spec import ModelSpec

__all__ = ["LlamaModel"]


class LlamaModel(CausalLM):
    def __init__(self, spec: ModelSpec, layers: Layers) -> None:
        super().__init__(spec, layers)
        if spec.rope is None:
            raise ValueError("the Llama family needs rotary positions")
        self.ops = layers.ops
        self.layers = nn.ModuleList(LlamaLayer(self.part, index, layers) for index in range(spec.num_layers))
        self.norm = layers.norm(spec.hidden_size, spec.norm_eps)
        self.rope = rope_table(spec.rope, spec.head_dim, spec.max_position, device=self.embed.weight.device)

    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        x: Tensor = self.embed(input_ids)
        rotation = self.ops.rotation(self.rope, positions, x.dtype)
        residual = torch.zeros_like(x)
        for layer in self.layers:
            x, residual = layer(x, residual, rotation, attn)
        return self.norm.add(x, residual)[0]

    def weight_table(self) -> WeightTable:
        whole, shard = self.spec, self.shard
        q, kv, mlp = self.part.q_size, self.part.kv_size, self.part.intermediate_size
        heads, kv_heads = shard.rows(whole.q_size, q), shard.rows(whole.kv_size, kv)
        features = shard.rows(whole.intermediate_size, mlp)
        layer = {
            "input_layernorm": ParamSlice("input_norm"),
            "self_attn.q_proj": ParamSlice("attention.qkv", 0, q, cut=heads),
            "self_attn.k_proj": ParamSlice("attention.qkv", q, kv, cut=kv_heads),
            "self_attn.v_proj": ParamSlice("attention.qkv", q + kv, kv, cut=kv_heads),
            "self_attn.o_proj": ParamSlice("attention.out", cut=shard.columns(whole.q_size)),
            "post_attention_layernorm": ParamSlice("mlp_norm"),
            "mlp.gate_proj": ParamSlice("mlp.gate_up", 0, mlp, cut=features),
            "mlp.up_proj": ParamSlice("mlp.gate_up", mlp, mlp, cut=features),
            "mlp.down_proj": ParamSlice("mlp.down", cut=shard.columns(whole.intermediate_size)),
        }
        if self.spec.qk_norm:
            layer |= {
                "self_attn.q_norm": ParamSlice("attention.q_norm"),
                "self_attn.k_norm": ParamSlice("attention.k_norm"),
            }
        table = {"model.embed_tokens": ParamSlice("embed"), "model.norm": ParamSlice("norm")}
        if not self.spec.tied_embeddings:
            table["lm_head"] = self.head_param()
        return table | dict(per_layer(self.spec.num_layers, "model.layers.{}.", "layers.{}.", layer))

    def ignores(self, name: str) -> bool:
        return super().ignores(name) or name.endswith("rotary_emb.inv_freq")


class LlamaLayer(nn.Module):
    def __init__(self, spec: ModelSpec, index: int, layers: Layers) -> None:
        super().__init__()
        self.input_norm = layers.norm(spec.hidden_size, spec.norm_eps)
        self.attention = LlamaAttention(spec, index, layers)
        self.mlp_norm = layers.norm(spec.hidden_size, spec.norm_eps)
        self.mlp = layers.mlp(spec)

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
        super().__init__()
        self.index = index
        self.ops = layers.ops
        self.num_heads = spec.num_heads
        self.head_dim = spec.head_dim
        self.num_kv_heads = spec.num_kv_heads
        self.qkv = layers.linear(spec.hidden_size, spec.q_size + 2 * spec.kv_size, bias=spec.qkv_bias)
        self.out = layers.sum_linear(spec.q_size, spec.hidden_size, bias=spec.output_bias)
        self.q_norm = layers.norm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.k_norm = layers.norm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None

    def forward(self, x: Tensor, rotation: Rotation, attn: Attention) -> Tensor:
        qkv = self.qkv(x).view(len(x), -1, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, _ = qkv.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
            self.ops.norm_heads(q, self.q_norm.weight, self.q_norm.eps)
            self.ops.norm_heads(k, self.k_norm.weight, self.k_norm.eps)
        output: Tensor = self.out(attn.forward(self.index, qkv, rotation).flatten(1))
        return output
