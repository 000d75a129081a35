"""The names that checkpoints give to a layer's MLP or experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.models.weight_table import ParamSlice
from engine.spec.model_spec import ModelSpec
from engine.spec.shard import Shard

__all__ = ["mlp_table"]


@dataclass(frozen=True, slots=True)
class _Names:
    """Modules of a checkpoint, below a layer."""

    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "mlp.shared_expert"


_MIXTRAL: Final = _Names("block_sparse_moe", "w1", "w3", "w2")
_GLM4: Final = _Names(shared="mlp.shared_experts")
_NAMES: Final = {"MixtralForCausalLM": _MIXTRAL, "Glm4MoeForCausalLM": _GLM4}
"""Where they differ from Qwen's."""


def mlp_table(whole: ModelSpec, part: ModelSpec, shard: Shard, layer: int) -> dict[str, ParamSlice]:
    """Which modules of a checkpoint's layer fill its MLP or its experts."""
    names = _NAMES.get(whole.architecture, _Names())
    experts, mine = whole.experts, part.experts
    if experts is None or mine is None or not whole.has_experts(layer):
        return _gated("mlp", "mlp", whole.intermediate_size, part.intermediate_size, shard, _Names())
    table: dict[str, ParamSlice] = {f"{names.block}.gate": ParamSlice("mlp.router")}
    for expert in range(experts.count):
        source = f"{names.block}.experts.{expert}"
        sizes = experts.intermediate_size, mine.intermediate_size
        table |= _gated(source, "mlp", *sizes, shard, names, expert=expert)
    if experts.shared_size:
        sizes = experts.shared_size, mine.shared_size
        table |= _gated(names.shared, "mlp.shared", *sizes, shard, names)
    if experts.shared_gate:
        table["mlp.shared_expert_gate"] = ParamSlice("mlp.shared_gate")
    return table


def _gated(
    source: str, target: str, whole: int, part: int, shard: Shard, names: _Names, *, expert: int | None = None
) -> dict[str, ParamSlice]:
    features = shard.rows(whole, part)
    gate_up, down = f"{target}.gate_up", f"{target}.down"
    return {
        f"{source}.{names.gate}": ParamSlice(gate_up, 0, part, expert, cut=features),
        f"{source}.{names.up}": ParamSlice(gate_up, part, part, expert, cut=features),
        f"{source}.{names.down}": ParamSlice(down, expert=expert, cut=shard.columns(whole)),
    }
