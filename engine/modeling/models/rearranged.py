"""Relatives of Llama that differ in how their checkpoints arrange tensors, not in what they compute."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from engine.modeling.models.llama import LlamaModel


class ErnieMoeModel(LlamaModel):
    """ERNIE 4.5 with experts: the biases of routers are apart."""

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


class StackedExpertsModel(LlamaModel):
    """Qwen3.5: all experts are in one tensor, gate and up [E, 2 I, d], down [E, d, I]."""

    def unstacked(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        block, _, module = name.rpartition(".experts.")
        if module not in ("gate_up_proj", "down_proj"):
            yield name, tensor
            return
        for expert, part in enumerate(tensor):
            source = f"{block}.experts.{expert}."
            if module == "down_proj":
                yield f"{source}down_proj.weight", part
                continue
            gate, up = part.chunk(2)
            yield f"{source}gate_proj.weight", gate
            yield f"{source}up_proj.weight", up


class Qwen3VLMoeModel(StackedExpertsModel):
    """Qwen3-VL with experts, whose matrices the hub's files have the other way round."""

    def unstacked(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        turned = {"gate_up_proj": 1, "down_proj": 2}.get(name.rpartition(".experts.")[2])
        if turned is not None and tensor.shape[turned] == self.spec.hidden_size:
            tensor = tensor.transpose(1, 2)
        return super().unstacked(name, tensor)
