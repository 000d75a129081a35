"""Models with Mamba2: Nemotron-H, whose layers are a mixer, an MLP or experts each, and Granite 4."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from torch import Tensor, nn

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.recurrent_spec import RecurrentSpec
from engine.model_config.shard import Cut, Shard
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.layers.recurrent import Convolution, GroupNorm, RecurrentWeights, StateSpace
from engine.modeling.models.base import Attention, RecurrentAttention
from engine.modeling.models.llama import LlamaAttention, LlamaModel
from engine.modeling.models.mlp_table import mlp_names
from engine.modeling.models.weight_table import ParamSlice, WeightTable


class NemotronHModel(LlamaModel):
    def layer(self, index: int, layers: Layers) -> nn.Module:
        if self.spec.lone_mlps is not None and index in self.spec.lone_mlps:
            return LoneMlp(self.part, index, layers)
        return LoneMixer(self.part, layers, self.mixer(index, layers))

    def mixer(self, index: int, layers: Layers) -> nn.Module:
        recurrent = self.part.recurrent
        if recurrent is None or index not in recurrent.layers:
            return LlamaAttention(self.part, self.part.attention_layers.index(index), layers)
        number = sorted(recurrent.layers).index(index)
        return Mamba2(self.part, recurrent, number, layers, "mixer")

    def weight_table(self) -> WeightTable:
        table = {"model.embeddings": ParamSlice("embed"), "model.norm_f": ParamSlice("norm")}
        return {**table, **self.head_table(), **self.layer_tables()}

    def layer_table(self, index: int) -> dict[str, ParamSlice]:
        whole, part = self.spec.recurrent, self.part.recurrent
        norm = {"norm": ParamSlice("norm")}
        if self.spec.lone_mlps is not None and index in self.spec.lone_mlps:
            return norm | self.mlp_table(index)
        if whole is None or part is None or index not in whole.layers:
            return norm | self.mixer_table(index)
        return norm | mamba2_table(whole, part, self.shard, "mixer")

    def ignores(self, name: str) -> bool:
        """The head for multi-token prediction is several layers here."""
        return super().ignores(name) or name.startswith("mtp.")


class GraniteHybridModel(LlamaModel):
    """Checkpoints have gate and up in one tensor, [2 I, d], and experts in two, [E, 2 I, d] and [E, d, I]."""

    def mixer(self, index: int, layers: Layers) -> nn.Module:
        recurrent = self.part.recurrent
        if recurrent is None or index not in recurrent.layers:
            return LlamaAttention(self.part, self.part.attention_layers.index(index), layers)
        return Mamba2(self.part, recurrent, sorted(recurrent.layers).index(index), layers, "mamba")

    def mixer_table(self, index: int) -> dict[str, ParamSlice]:
        whole, part = self.spec.recurrent, self.part.recurrent
        if whole is None or part is None or index not in whole.layers:
            return super().mixer_table(index)
        return mamba2_table(whole, part, self.shard, "mamba")

    def unstacked(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        block, _, module = name.rpartition(".")[0].rpartition(".")
        if module not in ("input_linear", "output_linear"):
            yield name, tensor
            return
        stacked = {block: tensor}
        if block.endswith("block_sparse_moe"):
            stacked = {f"{block}.experts.{expert}": part for expert, part in enumerate(tensor)}
        for source, part in stacked.items():
            if module == "output_linear":
                yield f"{source}.down_proj.weight", part
                continue
            gate, up = part.chunk(2)
            yield f"{source}.gate_proj.weight", gate
            yield f"{source}.up_proj.weight", up


class LoneMixer(nn.Module):
    """A layer without an MLP."""

    def __init__(self, spec: ModelSpec, layers: Layers, mixer: nn.Module) -> None:
        super().__init__()
        self.norm = layers.norm(spec)
        self.attention = mixer

    def forward(
        self, x: Tensor, residual: Tensor, rotation: Rotation | None, attn: Attention
    ) -> tuple[Tensor, Tensor]:
        """As `LlamaLayer.forward`."""
        x, residual = self.norm.add(x, residual)
        return self.attention(x, rotation, attn), residual


class LoneMlp(nn.Module):
    """A layer without attention or a state."""

    def __init__(self, spec: ModelSpec, index: int, layers: Layers) -> None:
        super().__init__()
        self.norm = layers.norm(spec)
        self.mlp = layers.mlp(spec, index, mlp_names(spec))

    def forward(
        self, x: Tensor, residual: Tensor, rotation: Rotation | None, attn: Attention
    ) -> tuple[Tensor, Tensor]:
        """As `LlamaLayer.forward`."""
        x, residual = self.norm.add(x, residual)
        return self.mlp(x), residual


class Mamba2(nn.Module):
    """C, B and the inputs are what queries, keys and values are to `RecurrentAttention.recur`."""

    def __init__(
        self, spec: ModelSpec, recurrent: RecurrentSpec, index: int, layers: Layers, name: str
    ) -> None:
        """`index`: among the layers with a state. `name`: of its module in checkpoints."""
        super().__init__()
        self.index = index
        self._sizes = [recurrent.mixed_size, recurrent.value_size, recurrent.value_heads]
        self.projection = layers.linear(
            f"{name}.in_proj",
            in_features=spec.hidden_size,
            out_features=sum(self._sizes),
            bias=False,
            rearranged=True,
        )
        self.convolution = Convolution(recurrent.mixed_size, recurrent.kernel, bias=recurrent.kernel_bias)
        self.steps = StateSpace(recurrent.value_heads, recurrent.smallest_step)
        self.norm = GroupNorm(recurrent.key_heads, recurrent.value_size // recurrent.key_heads, spec.norm_eps)
        self.out = layers.sum_linear(
            f"{name}.out_proj",
            in_features=recurrent.value_size,
            out_features=spec.hidden_size,
            bias=False,
        )

    def forward(self, x: Tensor, rotation: Rotation | None, attn: RecurrentAttention) -> Tensor:
        mixed, gate, rates = self.projection(x).split(self._sizes, dim=1)
        log_decay, step = self.steps(rates)
        weights = RecurrentWeights(self.convolution.weight, self.convolution.bias, self.steps.D)
        heads = attn.recur(self.index, mixed, log_decay, step, weights)
        output: Tensor = self.out(self.norm(heads.flatten(1), gate))
        return output


def mamba2_table(whole: RecurrentSpec, part: RecurrentSpec, shard: Shard, name: str) -> dict[str, ParamSlice]:
    """Which modules of a checkpoint's layer fill its `Mamba2`. A rank has consecutive groups of heads."""
    values = shard.rows(whole.value_size, part.value_size)
    heads = shard.rows(whole.value_heads, part.value_heads)
    groups = shard.rows(whole.key_size, part.key_size)
    gates, inputs, b, c, rates = _behind(values, values, groups, groups, heads)
    mixed_inputs, mixed_b, mixed_c = _behind(values, groups, groups)
    projected = whole.mixed_size + whole.value_size + whole.value_heads
    return {
        f"{name}.in_proj": ParamSlice(
            "attention.projection", cut=Cut(0, projected, (*c, *b, *inputs, *gates, *rates))
        ),
        f"{name}.conv1d": ParamSlice(
            "attention.convolution", cut=Cut(0, whole.mixed_size, (*mixed_c, *mixed_b, *mixed_inputs))
        ),
        name: ParamSlice("attention.steps", cut=heads),
        f"{name}.norm": ParamSlice("attention.norm", cut=values),
        f"{name}.out_proj": ParamSlice("attention.out", cut=shard.columns(whole.value_size)),
    }


def _behind(*cuts: Cut) -> list[list[range]]:
    """The stretches of cuts of tensors that a checkpoint has in one, each behind the one before."""
    starts = accumulate((cut.extent for cut in cuts), initial=0)
    return [
        [range(start + part.start, start + part.stop) for part in cut.stretches]
        for start, cut in zip(starts, cuts, strict=False)
    ]
