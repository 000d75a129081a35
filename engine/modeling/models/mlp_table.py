"""The names that checkpoints give to a layer's MLP or experts."""

from __future__ import annotations

from typing import Final

from engine.model_config.model_spec import ModelSpec
from engine.model_config.shard import Shard
from engine.modeling.layers.mlp import MlpNames
from engine.modeling.models.weight_table import ParamSlice

_MIXTRAL: Final = MlpNames(
    "block_sparse_moe",
    "block_sparse_moe.w1",
    "block_sparse_moe.w3",
    "block_sparse_moe.w2",
    router="block_sparse_moe.gate",
)
_FUSED: Final = MlpNames(gate="mlp.gate_up_proj", up="mlp.gate_up_proj")
_BESIDE: Final = MlpNames("", ".gate_proj", ".up_proj", ".down_proj", router="router.proj")
_SHARED_EXPERTS: Final = MlpNames(shared_block="mlp.shared_experts")
_NEMOTRON_H: Final = MlpNames(
    "mixer", "mixer.up_proj", "mixer.up_proj", "mixer.down_proj", "mixer.shared_experts", "mixer.gate"
)
_GRANITE_HYBRID: Final = MlpNames(
    "block_sparse_moe",
    "block_sparse_moe.gate_proj",
    "block_sparse_moe.up_proj",
    "block_sparse_moe.down_proj",
    shared_block="shared_mlp",
    router="block_sparse_moe.router.layer",
)
_GRANITE_DENSE: Final = MlpNames("mlp", "shared_mlp.gate_proj", "shared_mlp.up_proj", "shared_mlp.down_proj")
_NAMES: Final = {
    "GraniteMoeHybridForCausalLM": _GRANITE_HYBRID,
    "NemotronHForCausalLM": _NEMOTRON_H,
    "MixtralForCausalLM": _MIXTRAL,
    "MiniMaxM2ForCausalLM": _MIXTRAL,
    "HYV3ForCausalLM": _SHARED_EXPERTS,
    "Glm4MoeForCausalLM": _SHARED_EXPERTS,
    "DeepseekV2ForCausalLM": _SHARED_EXPERTS,
    "DeepseekV3ForCausalLM": _SHARED_EXPERTS,
    "DeepseekV32ForCausalLM": _SHARED_EXPERTS,
    "GlmMoeDsaForCausalLM": _SHARED_EXPERTS,
    "KimiLinearForCausalLM": _SHARED_EXPERTS,
    "Glm4MoeLiteForCausalLM": _SHARED_EXPERTS,
    "GptOssForCausalLM": MlpNames(router="mlp.router"),
    "Phi3ForCausalLM": _FUSED,
    "GlmForCausalLM": _FUSED,
    "Glm4ForCausalLM": _FUSED,
    "Ernie4_5_MoeForCausalLM": _SHARED_EXPERTS,
    "Gemma4ForCausalLM": _BESIDE,
    "Gemma4ForConditionalGeneration": _BESIDE,
}
"""Where they differ from Qwen's."""


def mlp_names(spec: ModelSpec) -> MlpNames:
    if spec.architecture == "GraniteMoeHybridForCausalLM" and spec.experts is None:
        return _GRANITE_DENSE
    return _NAMES.get(spec.architecture, MlpNames())


def mlp_table(whole: ModelSpec, part: ModelSpec, shard: Shard, layer: int) -> dict[str, ParamSlice]:
    """Which modules of a checkpoint's layer fill its MLP or its experts."""
    experts, mine, names = whole.experts, part.experts, mlp_names(whole)
    if experts is None or mine is None or not whole.has_experts(layer):
        return _matrices(whole, "mlp", whole.intermediate_size, part.intermediate_size, shard, names.dense)
    table: dict[str, ParamSlice] = {names.router: ParamSlice("mlp.router")}
    sizes = experts.intermediate_size, mine.intermediate_size
    within = shard.within_experts(experts)
    for index, expert in enumerate(mine.held):
        table |= _matrices(whole, "mlp", *sizes, within, names.expert(expert), expert=index)
    if experts.shared_size and not experts.beside_mlp:
        table |= _matrices(whole, "mlp.shared", experts.shared_size, mine.shared_size, shard, names.shared)
    if experts.latent is not None:
        table |= {
            f"{names.block}.fc1_latent_proj": ParamSlice("mlp.latent.into"),
            f"{names.block}.fc2_latent_proj": ParamSlice("mlp.latent.back"),
        }
    if experts.shared_gate:
        table["mlp.shared_expert_gate"] = ParamSlice("mlp.shared_gate")
    return table


def _matrices(
    spec: ModelSpec,
    target: str,
    whole: int,
    part: int,
    shard: Shard,
    names: MlpNames,
    *,
    expert: int | None = None,
) -> dict[str, ParamSlice]:
    """`whole`, `part`: features of the MLP, and of the rank's part of it."""
    features = shard.rows(whole, part)
    gate_up, down = f"{target}.gate_up", f"{target}.down"
    table = {
        names.gate: ParamSlice(gate_up, 0, part, expert, cut=features),
        names.up: ParamSlice(gate_up, part, part, expert, cut=features),
        names.down: ParamSlice(down, expert=expert, cut=shard.columns(whole)),
    }
    if not spec.gated_mlp:
        table[names.up] = ParamSlice(gate_up, expert=expert, cut=features)
    elif names.gate == names.up:  # one tensor has both
        table[names.gate] = ParamSlice(gate_up, cut=shard.rows(whole, part, blocks=2))
    return table
