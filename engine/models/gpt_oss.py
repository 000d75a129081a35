"""gpt-oss, whose checkpoints have the matrices of all experts in one tensor, with gate and up interleaved."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from engine.models.llama import LlamaModel


class GptOssModel(LlamaModel):
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
