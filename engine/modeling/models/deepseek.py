"""DeepSeek-V2 to V3.2 and GLM-5: latent attention, with an indexer or without, and experts.

The matrices that expand a latent to keys and values are absorbed: queries are multiplied with the one,
results with the other. So attention runs over the stored rows, as if all heads shared one key head.
"""

from __future__ import annotations

from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.latent_spec import LatentSpec
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.formats.quantized import QuantizedWeight
from engine.modeling.layers.indexer import Indexer
from engine.modeling.layers.linear.linear_layer import Linear, LinearMethod
from engine.modeling.layers.modules import RMSNorm
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.models.base import SparseAttention
from engine.modeling.models.llama import LlamaModel
from engine.modeling.models.weight_table import ParamSlice

_EPS: Final = 1e-6
"""Epsilon of the latents' norms, whatever the other norms have."""

_INDEXER: Final = {"wq_b": "queries", "wk": "key", "k_norm": "key_norm", "weights_proj": "head_weights"}


class DeepseekModel(LlamaModel):
    def mixer(self, index: int, layers: Layers) -> nn.Module:
        assert self.part.latent is not None
        return LatentAttention(self.part, self.part.latent, index, layers)

    def mixer_table(self, index: int) -> dict[str, ParamSlice]:
        latent, heads, part = self.spec.latent, self.spec.num_heads, self.part.num_heads
        assert latent is not None

        def of_heads(features: int) -> ParamSlice:
            return ParamSlice("", cut=self.shard.rows(heads * features, part * features))

        queries, expansion = of_heads(latent.query_dim), of_heads(latent.unrotated + latent.value_dim)
        columns = self.shard.columns(heads * latent.value_dim)
        table = {
            "kv_a_proj_with_mqa": ParamSlice("attention.row"),
            "kv_a_layernorm": ParamSlice("attention.norm"),
            "kv_b_proj": ParamSlice("attention.expansion", cut=expansion.cut),
            "o_proj": ParamSlice("attention.out", cut=columns),
        }
        if latent.query_rank is None:
            table["q_proj"] = ParamSlice("attention.queries", cut=queries.cut)
        else:
            table |= {
                "q_a_proj": ParamSlice("attention.query_latent"),
                "q_a_layernorm": ParamSlice("attention.query_norm"),
                "q_b_proj": ParamSlice("attention.queries", cut=queries.cut),
            }
        if latent.indexer is not None and index not in latent.indexer.shared:
            table |= {
                f"indexer.{name}": ParamSlice(f"attention.indexer.{to}") for name, to in _INDEXER.items()
            }
        return {f"self_attn.{name}": place for name, place in table.items()}


class _Expansion(Linear):
    """For each head the matrices from a latent to its keys and to its values, never quantized once loaded."""

    adaptable: ClassVar[bool] = False

    def __init__(self, latent: LatentSpec, heads: int, method: LinearMethod) -> None:
        features = heads * (latent.unrotated + latent.value_dim)
        super().__init__(latent.rank, features, bias=False, method=method)
        self._latent = latent
        self._sizes = [latent.unrotated, latent.value_dim]
        self._heads = heads

    def unpacked(self) -> _Expansion:
        return _Expansion(self._latent, self._heads, self.stored)

    def pack(self) -> None:
        if isinstance(self.method, QuantizedWeight):
            self.method.dequantize(self)

    def matrices(self) -> tuple[Tensor, Tensor]:
        """[heads, unrotated, rank] and [heads, value_dim, rank]."""
        both = self.weight.view(self._heads, sum(self._sizes), -1)
        keys, values = torch.split(both, self._sizes, dim=1)
        return keys, values


class LatentAttention(nn.Module):
    def __init__(self, spec: ModelSpec, latent: LatentSpec, index: int, layers: Layers) -> None:
        super().__init__()
        self.index = index
        self.latent = latent
        self._ops = layers.ops
        self.num_heads = spec.num_heads
        hidden, rank = spec.hidden_size, latent.query_rank
        self.query_latent = self.query_norm = None
        if rank is not None:
            self.query_latent = layers.linear(
                "self_attn.q_a_proj", in_features=hidden, out_features=rank, bias=False
            )
            self.query_norm = RMSNorm(rank, _EPS, layers.ops)
        self.queries = layers.linear(
            "self_attn.q_proj" if rank is None else "self_attn.q_b_proj",
            in_features=rank or hidden,
            out_features=spec.num_heads * latent.query_dim,
            bias=False,
        )
        self.row = layers.linear(
            "self_attn.kv_a_proj_with_mqa", in_features=hidden, out_features=latent.row, bias=False
        )
        self.norm = RMSNorm(latent.rank, _EPS, layers.ops)
        self.indexer = None
        if latent.indexer is not None and index not in latent.indexer.shared:
            self.indexer = Indexer(latent.indexer, latent, hidden, layers)
        self.expansion = _Expansion(latent, spec.num_heads, layers.stored_method("self_attn.kv_b_proj"))
        self.out = layers.sum_linear(
            "self_attn.o_proj",
            in_features=spec.num_heads * latent.value_dim,
            out_features=hidden,
            bias=False,
        )

    def forward(self, x: Tensor, rotation: Rotation, attn: SparseAttention) -> Tensor:
        latent = self.latent
        keys, values = self.expansion.matrices()
        row, hidden = self.row(x), x
        if self.query_latent is not None and self.query_norm is not None:
            x = self.query_norm(self.query_latent(x))
        index = None if self.indexer is None else self.indexer(hidden, x, rotation)
        queries = self.queries(x).view(len(x), self.num_heads, latent.query_dim)
        rows = self._ops.latent_rows(
            torch.einsum("thn,hnr->thr", queries[:, :, : latent.unrotated], keys),
            queries[:, :, latent.unrotated :],
            row,
            self.norm.weight,
            _EPS,
            rotation,
            interleaved=latent.interleaved,
        )
        if latent.indexer is None:
            attended = attn.forward(self.index, rows, None)
        else:
            attended = attn.attend_to_chosen(self.index, rows, index)
        output: Tensor = self.out(torch.einsum("thr,hvr->thv", attended, values).flatten(1))
        return output
