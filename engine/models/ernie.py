"""ERNIE 4.5 with experts, whose checkpoints keep the routers' biases apart."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from engine.models.llama import LlamaModel

_STATICS = ("mlp.moe_statics.", "mlp.gate.moe_statics.")


class ErnieMoeModel(LlamaModel):
    def source_name(self, name: str) -> str:
        for statics in _STATICS:
            name = name.replace(statics, "mlp.gate.")
        return name

    def unstacked(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Biases are stored as [1, E]."""
        yield name, tensor.flatten() if name.endswith(".e_score_correction_bias") else tensor

    def ignores(self, name: str) -> bool:
        """The layers for multi-token prediction are beside the others here."""
        return super().ignores(name) or name.startswith("model.mtp_")
