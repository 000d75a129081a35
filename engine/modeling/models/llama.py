"""The Llama family: decoders of attention with rotary positions and a gated MLP or experts.

The members differ in biases, norms, rotation, the windows of layers and the names in checkpoints. All of that
is in the spec and in the tables of names. Layers get the spec of a rank's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.layer_options import Norms
from engine.model_config.parts.rope_spec import RopeSpec
from engine.model_config.quantization import NESTED
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.linear.linear_layer import weight
from engine.modeling.layers.modules import NoNorm
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.layers.rope import rope_table
from engine.modeling.models.attention_table import (
    attention_table,
    norm_table,
    projections,
)
from engine.modeling.models.base import Attention, CausalLM
from engine.modeling.models.mlp_table import mlp_names, mlp_table
from engine.modeling.models.weight_table import ParamSlice, WeightTable, per_layer

_VISION: Final = (
    "aligner.",
    "audio_tower.",
    "connector.",
    "embed_audio.",
    "embed_vision.",
    "generation_aligner.",
    "generation_embeddings.",
    "generation_head.",
    "high_res_vision_",
    "image_newline",
    "image_tower.",
    "merger.",
    "mlp1.",
    "mm_projector.",
    "multi_modal_projector.",
    "projector.",
    "video_tower.",
    "vision_",
    "visual.",
    "visual_",
    "vqmodel.",
)
_SPELLINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "Ernie4_5_MoeForCausalLM": {"mlp.moe_statics.": "mlp.gate.", "mlp.gate.moe_statics.": "mlp.gate."},
    "MiniMaxM2ForCausalLM": {"moe.e_score_correction_bias": "moe.gate.e_score_correction_bias"},
    "KimiLinearForCausalLM": {
        ".block_sparse_moe.": ".mlp.",
        ".w1.": ".gate_proj.",
        ".w3.": ".up_proj.",
        ".w2.": ".down_proj.",
        "self_attn.dt_bias": "self_attn.decay.dt_bias",
        "self_attn.A_log": "self_attn.decay.rate.A_log",
    },
    "HYV3ForCausalLM": {
        "mlp.router.gate.": "mlp.gate.",
        "mlp.expert_bias": "mlp.gate.e_score_correction_bias",
        "mlp.shared_mlp.": "mlp.shared_experts.",
    },
}
"""Parts of names in checkpoints of an architecture, and the parts that are read."""
_BASE_CLASS: Final = ("embed_tokens.", "layers.", "norm.")
"""Beginnings of names in a checkpoint that was saved from the model without its head."""


class LlamaModel(CausalLM):
    def __init__(self, spec: ModelSpec, layers: Layers) -> None:
        super().__init__(spec, layers)
        if spec.rope is None:
            raise ValueError("the Llama family needs rotary positions")
        self.ops = layers.ops
        within = [layers.within(self.layer_name.format(index)) for index in range(spec.num_layers)]
        self.layers = nn.ModuleList(self.layer(index, parts) for index, parts in enumerate(within))
        self.norm = layers.norm(spec)
        self._tapped: tuple[int, ...] = ()
        device = self.embed.weight.device
        self._ropes = [spec.rope_of(index) for index in range(spec.num_layers)]
        self._tables = {
            rope: rope_table(rope, spec.of_layer(index).rotary_dim, spec.max_position, device=device)
            for rope, index in {rope: index for index, rope in enumerate(self._ropes)}.items()
            if rope is not None
        }
        # Rounded to the model's dtype, as in training.
        self._scale = torch.tensor(spec.embedding_scale, device="cpu").to(self.embed.weight.dtype).item()

    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        x: Tensor = self.embed(input_ids)
        if self._scale != 1.0:
            x = x * self._scale
        if self.media is not None:
            x = self.media.placed(x)
        rotations = self.rotations(positions, x.dtype)
        inputs = self.layer_inputs(input_ids, x)
        residual = torch.zeros_like(x)
        taps: list[Tensor] = []
        for index, (layer, rope) in enumerate(zip(self.layers, self._ropes, strict=True)):
            x, residual = layer(x, residual, rotations[rope], attn, *inputs[index])
            if self.media is not None:
                x = self.media.deepened(x, index)
            if index in self._tapped:
                taps.append(x + residual)
        hidden = self.norm.add(x, residual)[0]
        return torch.cat([hidden, *taps], dim=-1) if taps else hidden

    def layer_inputs(self, input_ids: Tensor, x: Tensor) -> Sequence[tuple[Tensor, ...]]:
        """For each layer, what it gets besides the hidden state. `x`: that of the first layer."""
        return [()] * len(self.layers)

    def rotations(self, positions: Tensor, dtype: torch.dtype) -> dict[RopeSpec | None, Rotation | None]:
        """Rotations of the layers, keyed by RopeSpec. `positions`: see `Batch.rotary_positions`."""
        rotations: dict[RopeSpec | None, Rotation | None] = {None: None}
        for rope, table in self._tables.items():
            if positions.dim() == 2:
                turned = self._angles_by_axes(table, positions)
                places = torch.arange(len(turned), device=table.device)
                rotations[rope] = self.ops.rotation(turned, places, dtype)
                continue
            rotations[rope] = self.ops.rotation(table, positions, dtype)
        return rotations

    def _angles_by_axes(self, table: Tensor, positions: Tensor) -> Tensor:
        """The table [T, head_dim] of a step whose positions [3, T] are along the axes of images."""
        grid = None if self.spec.vision is None else self.spec.vision.grid
        assert grid is not None, "only images have several positions"
        axes = torch.zeros(table.shape[1] // 2, dtype=torch.int64)
        axes[: len(grid.axes)] = torch.tensor(grid.axes)
        of_features = positions[torch.cat([axes, axes]).to(positions.device)]
        return table.gather(0, of_features.T)

    def tap(self, layers: Sequence[int]) -> None:
        self._tapped = tuple(layers)

    def layer(self, index: int, layers: Layers) -> nn.Module:
        return LlamaLayer(self.part, index, layers, self.mixer(index, layers))

    def mixer(self, index: int, layers: Layers) -> nn.Module:
        """What a layer has before its MLP: x [T, d], the step's rotation and attention -> [T, d]."""
        return LlamaAttention(self.part, index, layers)

    def sinks(self, layer: int) -> Tensor | None:
        mixer = self.get_submodule(f"layers.{layer}.attention")
        return mixer.sinks if isinstance(mixer, LlamaAttention) else None

    def weight_table(self) -> WeightTable:
        table = {"model.embed_tokens": ParamSlice("embed"), "model.norm": ParamSlice("norm")}
        return {**table, **self.head_table(), **self.layer_tables()}

    @property
    def layer_name(self) -> str:
        """What the names of a layer's modules begin with in checkpoints; `{}` is its number."""
        return "model.layers.{}."

    def layer_tables(self) -> WeightTable:
        """Which modules of the checkpoint fill the layers."""
        tables = [self.layer_table(index) for index in range(self.spec.num_layers)]
        return dict(per_layer(tables, self.layer_name, "layers.{}."))

    def layer_table(self, index: int) -> dict[str, ParamSlice]:
        """Which modules of a checkpoint's layer fill a layer."""
        return norm_table(self.spec) | self.mixer_table(index) | self.mlp_table(index)

    def mixer_table(self, index: int) -> dict[str, ParamSlice]:
        """Which modules of a checkpoint's layer fill its `mixer`."""
        return attention_table(self.spec, self.part, self.shard)

    def mlp_table(self, index: int) -> dict[str, ParamSlice]:
        """Which modules of a checkpoint's layer fill what follows its `mixer`."""
        return mlp_table(self.spec, self.part, self.shard, index)

    def source_name(self, name: str) -> str:
        if self.spec.quantization is not None:
            name = self.spec.quantization.read_as(name)
        for spelling, read in _SPELLINGS.get(self.spec.architecture, {}).items():
            name = name.replace(spelling, read)
        for nested, plain in NESTED.items():
            if name.startswith(nested):
                return plain + name.removeprefix(nested)
        return f"model.{name}" if name.startswith(_BASE_CLASS) else name

    def ignores(self, name: str) -> bool:
        if self.spec.mtp is not None and name.startswith(self.spec.mtp.tensors):
            return True
        if name.removeprefix("model.").startswith(_VISION) or name.endswith("rotary_emb.inv_freq"):
            return True
        return super().ignores(name)


class LlamaLayer(nn.Module):
    def __init__(self, spec: ModelSpec, index: int, layers: Layers, mixer: nn.Module) -> None:
        super().__init__()
        before, after = spec.norms is not Norms.AFTER, spec.norms is not Norms.BEFORE
        self.input_norm = layers.norm(spec) if before else NoNorm()
        self.attention = mixer
        self.attention_output_norm = layers.norm(spec) if after else None
        self.mlp_norm = layers.norm(spec) if before else NoNorm()
        self.mlp = layers.mlp(spec, index, mlp_names(spec))
        self.mlp_output_norm = layers.norm(spec) if after else None
        self._scale = spec.residual_scale

    def forward(
        self, x: Tensor, residual: Tensor, rotation: Rotation | None, attn: Attention
    ) -> tuple[Tensor, Tensor]:
        """`x` is the output of the layer below, not yet added to `residual`: the norm fuses the addition."""
        x, residual = self.input_norm.add(x, residual)
        x = self.attention(x, rotation, attn)
        if self.attention_output_norm is not None:
            x = self.attention_output_norm(x)
        x, residual = self.mlp_norm.add(self._scaled(x), residual)
        x = self.mlp(x)
        return self._scaled(x if self.mlp_output_norm is None else self.mlp_output_norm(x)), residual

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self._scale == 1.0 else x * self._scale


class LlamaAttention(nn.Module):
    def __init__(
        self, spec: ModelSpec, index: int, layers: Layers, *, in_features: int | None = None
    ) -> None:
        """`index`: among the layers with attention. `in_features`: None: of a hidden state."""
        super().__init__()
        self.index = index
        self.num_heads = spec.num_heads
        self.head_dim = spec.head_dim
        self.num_kv_heads = spec.num_kv_heads
        self.gates = spec.q_size if spec.output_gate else 0
        self.qkv = layers.linear(
            *projections(spec),
            in_features=in_features or spec.hidden_size,
            out_features=self.gates + spec.q_size + 2 * spec.kv_size,
            bias=spec.qkv_bias,
            rearranged=spec.rearranges_heads,
        )
        self.out = layers.sum_linear(
            f"{spec.attention.name}.o_proj",
            in_features=spec.q_size,
            out_features=spec.hidden_size,
            bias=spec.output_bias,
        )
        self.q_norm = layers.head_norm(spec, spec.num_heads)
        self.k_norm = layers.head_norm(spec, spec.num_kv_heads)
        self.sinks = weight(spec.num_heads, dtype=torch.float32) if spec.attention.sinks else None

    def forward(self, x: Tensor, rotation: Rotation | None, attn: Attention) -> Tensor:
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
