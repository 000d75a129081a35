"""GPT-2: learned positions, layer norm with bias, one GELU MLP, no grouped heads."""

from __future__ import annotations

import re
from typing import Final

from torch import Tensor, nn

from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.modules import Embedding, LayerNorm
from engine.modeling.models.base import Attention, CausalLM
from engine.modeling.models.weight_table import ParamSlice, WeightTable, per_layer

_CAUSAL_MASK: Final = re.compile(r"h\.\d+\.attn\.(masked_)?bias")
"""Old checkpoints carry the causal mask as a tensor."""


class GPT2Model(CausalLM):
    def __init__(self, spec: ModelSpec, layers: Layers) -> None:
        super().__init__(spec, layers)
        self.embed_position = Embedding(spec.max_position, spec.hidden_size)
        self.layers = nn.ModuleList(
            GPT2Layer(self.part, index, layers.within(f"h.{index}.")) for index in range(spec.num_layers)
        )
        self.norm = LayerNorm(spec.hidden_size, spec.norm_eps)

    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        x: Tensor = self.embed(input_ids) + self.embed_position(positions)
        for layer in self.layers:
            x = layer(x, attn)
        output: Tensor = self.norm(x)
        return output

    def weight_table(self) -> WeightTable:
        whole, part, shard = self.spec, self.part, self.shard
        heads = shard.rows(whole.q_size, part.q_size, blocks=3)  # queries, keys, values
        features = shard.rows(whole.intermediate_size, part.intermediate_size)
        layer = {
            "ln_1": ParamSlice("attention_norm"),
            "attn.c_attn": ParamSlice("qkv", transposed=True, cut=heads),
            "attn.c_proj": ParamSlice("out", transposed=True, cut=shard.columns(whole.q_size)),
            "ln_2": ParamSlice("mlp_norm"),
            "mlp.c_fc": ParamSlice("up", transposed=True, cut=features),
            "mlp.c_proj": ParamSlice("down", transposed=True, cut=shard.columns(whole.intermediate_size)),
        }
        table = {"wte": ParamSlice("embed"), "wpe": ParamSlice("embed_position"), "ln_f": ParamSlice("norm")}
        return {**table, **self.head_table()} | dict(
            per_layer([layer] * whole.num_layers, "h.{}.", "layers.{}.")
        )

    def source_name(self, name: str) -> str:
        # The original release has names without this prefix; later checkpoints have it.
        return name.removeprefix("transformer.")

    def ignores(self, name: str) -> bool:
        return super().ignores(name) or _CAUSAL_MASK.fullmatch(name) is not None


class GPT2Layer(nn.Module):
    def __init__(self, spec: ModelSpec, index: int, layers: Layers) -> None:
        super().__init__()
        hidden, inner = spec.hidden_size, spec.intermediate_size
        self.index = index
        self.ops = layers.ops
        self.head_dim = spec.head_dim
        self.attention_norm = LayerNorm(hidden, spec.norm_eps)
        self.qkv = layers.linear("attn.c_attn", in_features=hidden, out_features=3 * spec.q_size, bias=True)
        self.out = layers.sum_linear("attn.c_proj", in_features=spec.q_size, out_features=hidden, bias=True)
        self.mlp_norm = LayerNorm(hidden, spec.norm_eps)
        self.up = layers.linear("mlp.c_fc", in_features=hidden, out_features=inner, bias=True)
        self.down = layers.sum_linear("mlp.c_proj", in_features=inner, out_features=hidden, bias=True)

    def forward(self, x: Tensor, attn: Attention) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).view(len(x), -1, self.head_dim)
        x = x + self.out(attn.forward(self.index, qkv, None).flatten(1))
        output: Tensor = x + self.down(self.ops.gelu(self.up(self.mlp_norm(x))))
        return output
