"""Qwen3-Next and Qwen3.5: gated delta nets in most layers, attention with an output gate in the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from torch import Tensor, nn

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.recurrent_spec import RecurrentSpec
from engine.model_config.shard import Cut, Shard
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.layers.recurrent import Convolution, Decay, GatedNorm, RecurrentWeights
from engine.modeling.models.base import RecurrentAttention
from engine.modeling.models.rearranged import StackedExpertsModel
from engine.modeling.models.weight_table import ParamSlice


class Qwen3NextModel(StackedExpertsModel):
    def mixer(self, index: int, layers: Layers) -> nn.Module:
        delta = self.part.recurrent
        if delta is None or index not in delta.layers:
            return super().mixer(self.part.attention_layers.index(index), layers)
        return GatedDeltaNet(self.part, delta, sorted(delta.layers).index(index), layers)

    def mixer_table(self, index: int) -> dict[str, ParamSlice]:
        whole, part = self.spec.recurrent, self.part.recurrent
        if whole is None or part is None or index not in whole.layers:
            return super().mixer_table(index)
        return _delta_table(whole, part, self.shard)


class GatedDeltaNet(nn.Module):
    def __init__(self, spec: ModelSpec, delta: RecurrentSpec, index: int, layers: Layers) -> None:
        """`index`: among the layers with a delta net."""
        super().__init__()
        self.index = index
        self._sizes = [delta.mixed_size, delta.value_size]
        self._heads = (delta.value_heads, delta.value_dim)
        sources, gates = (["qkvz"], ["ba"]) if delta.interleaved else (["qkv", "z"], ["b", "a"])
        self.mixed_and_gate = layers.linear(
            *(f"linear_attn.in_proj_{name}" for name in sources),
            in_features=spec.hidden_size,
            out_features=sum(self._sizes),
            bias=False,
        )
        self.rates = layers.linear(
            *(f"linear_attn.in_proj_{name}" for name in gates),
            in_features=spec.hidden_size,
            out_features=2 * delta.value_heads,
            bias=False,
        )
        self.convolution = Convolution(delta.mixed_size, delta.kernel)
        self.decay = Decay(delta.value_heads, layers.ops)
        self.norm = GatedNorm(delta.value_dim, spec.norm_eps, layers.ops)
        self.out = layers.sum_linear(
            "linear_attn.out_proj",
            in_features=delta.value_size,
            out_features=spec.hidden_size,
            bias=False,
        )

    def forward(self, x: Tensor, rotation: Rotation, attn: RecurrentAttention) -> Tensor:
        mixed, gate = self.mixed_and_gate(x).split(self._sizes, dim=1)
        log_decay, beta = self.decay(self.rates(x))
        weights = RecurrentWeights(self.convolution.weight)
        heads = attn.recur(self.index, mixed, log_decay, beta, weights)
        output: Tensor = self.out(self.norm(heads, gate.unflatten(1, self._heads)).flatten(1))
        return output


def _delta_table(whole: RecurrentSpec, part: RecurrentSpec, shard: Shard) -> dict[str, ParamSlice]:
    """A rank has consecutive key heads with their value heads.

    Queries, keys and values are three parts of one tensor, each of which is cut for itself.
    """
    table = {
        "linear_attn.conv1d": ParamSlice("attention.convolution", cut=_mixed(whole, part, shard)),
        "linear_attn": ParamSlice("attention.decay", cut=shard.rows(whole.value_heads, part.value_heads)),
        "linear_attn.norm": ParamSlice("attention.norm"),
        "linear_attn.out_proj": ParamSlice("attention.out", cut=shard.columns(whole.value_size)),
    }
    mixed, gate, rates = part.mixed_size, part.value_size, part.value_heads
    if whole.interleaved:
        return table | {
            "linear_attn.in_proj_qkvz": ParamSlice(_MIXED, cut=_interleaved_mixed(whole, part, shard)),
            "linear_attn.in_proj_ba": ParamSlice(_RATES, cut=_interleaved_rates(whole, part, shard)),
        }
    values, heads = shard.rows(whole.value_size, gate), shard.rows(whole.value_heads, rates)
    return table | {
        "linear_attn.in_proj_qkv": ParamSlice(_MIXED, 0, mixed, cut=_mixed(whole, part, shard)),
        "linear_attn.in_proj_z": ParamSlice(_MIXED, mixed, gate, cut=values),
        "linear_attn.in_proj_b": ParamSlice(_RATES, 0, rates, cut=heads),
        "linear_attn.in_proj_a": ParamSlice(_RATES, rates, rates, cut=heads),
    }


_MIXED: Final = "attention.mixed_and_gate"
_RATES: Final = "attention.rates"


def _mixed(whole: RecurrentSpec, part: RecurrentSpec, shard: Shard) -> Cut:
    """This rank's queries, keys and values of a tensor with all queries, then all keys, then all values."""
    keys = shard.rows(whole.key_size, part.key_size, blocks=2).stretches
    (values,) = shard.rows(whole.value_size, part.value_size).stretches
    behind = range(2 * whole.key_size + values.start, 2 * whole.key_size + values.stop)
    return Cut(0, whole.mixed_size, (*keys, behind))


def _interleaved_mixed(whole: RecurrentSpec, part: RecurrentSpec, shard: Shard) -> Cut:
    """The same, and gates, of a tensor that has the query, key, values and gates of one key head together."""
    group = whole.value_heads // whole.key_heads * whole.value_dim
    return _of_key_heads(whole, part, shard, [whole.key_dim, whole.key_dim, group, group])


def _interleaved_rates(whole: RecurrentSpec, part: RecurrentSpec, shard: Shard) -> Cut:
    group = whole.value_heads // whole.key_heads
    return _of_key_heads(whole, part, shard, [group, group])


def _of_key_heads(whole: RecurrentSpec, part: RecurrentSpec, shard: Shard, sizes: Sequence[int]) -> Cut:
    """Cut of a tensor with pieces of `sizes` for each key head: all first pieces, then all second ones, and
    so on.
    """
    (heads,) = shard.rows(whole.key_heads, part.key_heads).stretches
    each, starts = sum(sizes), accumulate(sizes, initial=0)
    pieces = (
        range(head * each + start, head * each + start + size)
        for start, size in zip(starts, sizes, strict=False)
        for head in heads
    )
    return Cut(0, whole.key_heads * each, tuple(pieces))
