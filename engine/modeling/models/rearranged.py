"""Relatives of Llama that differ in how their checkpoints arrange tensors, not in what they compute."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from torch import Tensor

from engine.modeling.models.llama import LlamaModel

_STATICS: Final = ("mlp.moe_statics.", "mlp.gate.moe_statics.")


class ErnieMoeModel(LlamaModel):
    """ERNIE 4.5 with experts: the biases of routers are apart."""

    def source_name(self, name: str) -> str:
        for statics in _STATICS:
            name = name.replace(statics, "mlp.gate.")
        return super().source_name(name)

    def unstacked(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Biases are stored as [1, E]."""
        yield name, tensor.flatten() if name.endswith(".e_score_correction_bias") else tensor

    def ignores(self, name: str) -> bool:
        """The layers for multi-token prediction are beside the others here."""
        return super().ignores(name) or name.startswith("model.mtp_")


class GptOssModel(LlamaModel):
    """gpt-oss: the matrices of all experts are in one tensor, with gate and up interleaved."""

    def unstacked(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        block, _, module = name.rpartition(".experts.")
        if not block:
            yield name, tensor
            return
        projection, _, kind = module.partition("_proj")  # gate_up_proj, gate_up_proj_bias, _blocks, _scales
        for expert, part in enumerate(tensor):
            if kind == "":
                part = part.t()
            elif kind == "_blocks":
                part = part.flatten(-2)
            source = f"{block}.experts.{expert}."
            stored = kind.removeprefix("_") or "weight"
            if projection == "gate_up":
                yield f"{source}gate_proj.{stored}", part[::2]
                yield f"{source}up_proj.{stored}", part[1::2]
            else:
                yield f"{source}{projection}_proj.{stored}", part
