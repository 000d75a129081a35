"""DeepSeek-V2 to V3.2, GLM-5 and Kimi Linear: latent attention, with an indexer or without, and experts.

The matrices that expand a latent to keys and values are absorbed: queries are multiplied with the one,
results with the other. So attention runs over the stored rows, as if all heads shared one key head.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.latent_spec import LatentSpec
from engine.model_config.parts.recurrent_spec import RecurrentSpec
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.formats.quantized import QuantizedWeight
from engine.modeling.layers.indexer import Indexer
from engine.modeling.layers.linear.linear_layer import Linear, LinearMethod
from engine.modeling.layers.modules import RMSNorm
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.layers.recurrent import (
    Convolution,
    FeatureDecay,
    RecurrentWeights,
    SigmoidGatedNorm,
)
from engine.modeling.models.base import RecurrentAttention, SparseAttention
from engine.modeling.models.llama import LlamaModel
from engine.modeling.models.weight_table import ParamSlice

_EPS: Final = 1e-6
"""Epsilon of the latents' norms, whatever the other norms have."""

_INDEXER: Final = {"wq_b": "queries", "wk": "key", "k_norm": "key_norm", "weights_proj": "head_weights"}


class DeepseekModel(LlamaModel):
    def mixer(self, index: int, layers: Layers) -> nn.Module:
        assert self.part.latent is not None
        number = self.part.attention_layers.index(index)
        return LatentAttention(self.part, self.part.latent, number, layers)

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


class KimiLinearModel(DeepseekModel):
    """Most layers have Kimi delta attention; the others' is not rotated."""

    def mixer(self, index: int, layers: Layers) -> nn.Module:
        recurrent = self.part.recurrent
        if recurrent is None or index not in recurrent.layers:
            return super().mixer(index, layers)
        return KimiDelta(self.part, recurrent, sorted(recurrent.layers).index(index), layers)

    def mixer_table(self, index: int) -> dict[str, ParamSlice]:
        whole, part = self.spec.recurrent, self.part.recurrent
        if whole is None or part is None or index not in whole.layers:
            return super().mixer_table(index)
        size, heads = part.key_size, self.shard.rows(whole.value_heads, part.value_heads)
        features = self.shard.rows(whole.key_size, size)
        table = {
            "f_a_proj": ParamSlice("attention.decay_rank"),
            "f_b_proj": ParamSlice("attention.decay_steps", cut=features),
            "decay": ParamSlice("attention.decay", cut=features),
            "decay.rate": ParamSlice("attention.decay.rate", cut=heads),
            "b_proj": ParamSlice("attention.rates", cut=heads),
            "g_a_proj": ParamSlice("attention.gate_rank"),
            "g_b_proj": ParamSlice("attention.gate", cut=features),
            "o_norm": ParamSlice("attention.norm"),
            "o_proj": ParamSlice("attention.out", cut=self.shard.columns(whole.value_size)),
        }
        for number, name in enumerate("qkv"):
            table[f"{name}_proj"] = ParamSlice("attention.mixed", number * size, size, cut=features)
            table[f"{name}_conv1d"] = ParamSlice("attention.convolution", number * size, size, cut=features)
        return {f"self_attn.{name}": place for name, place in table.items()}

    def unstacked(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Rates of heads are stored as [1, 1, heads, 1]."""
        yield name, tensor.flatten() if name.endswith(".A_log") else tensor


class KimiDelta(nn.Module):
    """A gated delta net with a decay for each feature, and a gate, both by way of a low rank."""

    def __init__(self, spec: ModelSpec, recurrent: RecurrentSpec, index: int, layers: Layers) -> None:
        """`index`: among the layers with a state."""
        super().__init__()
        self.index = index
        hidden, size, rank = spec.hidden_size, recurrent.value_size, recurrent.key_dim
        self._heads = recurrent.value_heads, recurrent.value_dim

        def linear(*names: str, into: int, out: int) -> Linear:
            sources = (f"self_attn.{name}_proj" for name in names)
            return layers.linear(*sources, in_features=into, out_features=out, bias=False)

        self.mixed = linear(*"qkv", into=hidden, out=recurrent.mixed_size)
        self.decay_rank = linear("f_a", into=hidden, out=rank)
        self.decay_steps = linear("f_b", into=rank, out=size)
        self.rates = linear("b", into=hidden, out=recurrent.value_heads)
        self.gate_rank = linear("g_a", into=hidden, out=rank)
        self.gate = linear("g_b", into=rank, out=size)
        self.convolution = Convolution(recurrent.mixed_size, recurrent.kernel)
        self.decay = FeatureDecay(recurrent.value_heads, recurrent.key_dim)
        self.norm = SigmoidGatedNorm(recurrent.value_dim, spec.norm_eps, layers.ops)
        self.out = layers.sum_linear("self_attn.o_proj", in_features=size, out_features=hidden, bias=False)

    def forward(self, x: Tensor, rotation: Rotation | None, attn: RecurrentAttention) -> Tensor:
        log_decay = self.decay(self.decay_steps(self.decay_rank(x)))
        beta = self.rates(x).float().sigmoid()
        weights = RecurrentWeights(self.convolution.weight)
        heads = attn.recur(self.index, self.mixed(x), log_decay, beta, weights)
        gate = self.gate(self.gate_rank(x)).view(len(x), *self._heads)
        output: Tensor = self.out(self.norm(heads, gate).flatten(1))
        return output


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

    def forward(self, x: Tensor, rotation: Rotation | None, attn: SparseAttention) -> Tensor:
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
