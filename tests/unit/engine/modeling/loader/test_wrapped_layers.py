"""A wrapper around the methods of linear layers, such as one that adds adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.linear.linear_layer import GroupedProduct, Linear, LinearMethod, Slot
from engine.modeling.loader.model_loader import load_model
from engine.modeling.loader.refill import Refill
from engine.modeling.models.base import CausalLM
from engine.parallel import TorchCommunicator
from tests.ranks import together
from tests.unit.engine.modeling.loader.test_refill import another, logits, rewritten
from tests.unit.engine.modeling.models.references import reference


@dataclass(frozen=True, slots=True)
class Doubled(LinearMethod):
    """Adds the product to itself."""

    method: LinearMethod

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        self.method.create(layer, in_features, out_features, stack=stack)

    def slots(self, layer: nn.Module) -> list[Slot]:
        return self.method.slots(layer)

    def pack(self, layer: Linear) -> LinearMethod:
        return Doubled(self.method.pack(layer))

    def pack_stack(self, layer: nn.Module) -> GroupedProduct:
        raise NotImplementedError

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        product = self.method.apply(layer, x, None)
        return product + product if bias is None else product + product + bias


def doubled(folder: Path, target: Path) -> Path:
    """A checkpoint with the weights that wrapped layers seem to have."""
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith("_proj.weight") and ".experts." not in name:
            tensors[name] *= 2
    return rewritten(folder, target, tensors)


@pytest.fixture(params=["llama", "mixtral", "qwen2 with experts", "phi3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    reference(request.param).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def wrapped(folder: Path, ranks: TorchCommunicator | None = None) -> tuple[CausalLM, list[str]]:
    """A model with wrapped layers, and the modules that were wrapped."""
    found: list[str] = []

    def wrap(method: LinearMethod, sources: Sequence[str]) -> LinearMethod:
        found.extend(sources)
        return Doubled(method)

    options = {} if ranks is None else {"communicator": ranks}
    return load_model(folder, wrap=wrap, **options), found


def test_linear_layers_compute_with_the_methods_that_a_wrapper_returns(folder: Path, tmp_path: Path) -> None:
    model, modules = wrapped(folder)

    assert torch.equal(logits(model), logits(load_model(doubled(folder, tmp_path / "doubled"))))
    names = {name.removesuffix(".weight") for name in load_file(folder / "model.safetensors")}
    assert {name for name in names if name.endswith("_proj") and ".experts." not in name} == set(modules)


def test_wrapped_layers_are_filled_again(folder: Path, tmp_path: Path) -> None:
    new = another(folder, tmp_path / "new")
    model, _ = wrapped(folder)

    Refill(model, new, ModelSpec.from_folder(new)).run()

    assert torch.equal(logits(model), logits(wrapped(new)[0]))


def test_a_wrapper_adds_before_ranks_are_summed(folder: Path, tmp_path: Path) -> None:
    whole = logits(load_model(doubled(folder, tmp_path / "doubled")))

    leader, _ = together(2, lambda ranks: logits(wrapped(folder, ranks)[0]))

    torch.testing.assert_close(leader, whole, atol=1e-4, rtol=1e-4)
