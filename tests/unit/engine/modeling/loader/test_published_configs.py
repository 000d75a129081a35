"""config.json as publishers write it: which tensors each quantized layer has then, or why it is refused."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch

from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.ops.select import ops_for
from engine.modeling.loader.places import places_of
from engine.modeling.models import registry
from engine.modeling.models.base import CausalLM
from engine.parallel.communicator import SINGLE_RANK
from tests.unit.engine.modeling.loader.published_accepted import ACCEPTED, Accepted
from tests.unit.engine.modeling.loader.published_gemma4 import GEMMA4
from tests.unit.engine.modeling.loader.published_refused import REFUSED, Refused
from tests.unit.engine.modeling.loader.published_vendors import VENDORS

TENSORS: Final = {
    "plain": {"weight"},
    "fp8": {"weight", "weight_scale"},
    "fp8 blocks": {"weight", "weight_scale_inv"},
    "awq": {"qweight", "qzeros", "scales"},
    "gptq": {"qweight", "qzeros", "scales"},
    "gptq act-order": {"qweight", "qzeros", "scales", "g_idx"},
    "packed": {"weight_packed", "weight_scale"},
    "packed with zeros": {"weight_packed", "weight_scale", "weight_zero_point"},
    "packed act-order": {"weight_packed", "weight_scale", "weight_g_idx"},
    "int8": {"weight", "weight_scale"},
    "nvfp4 modelopt": {"weight", "weight_scale", "weight_scale_2"},
    "nvfp4": {"weight_packed", "weight_scale", "weight_global_scale"},
    "mxfp4": {"blocks", "scales"},
    "mxfp4 quark": {"weight", "weight_scale"},
}
"""Tensors that a module has in a checkpoint."""
BIASES: Final = {"bias", "e_score_correction_bias"}


def built(config: dict[str, Any]) -> CausalLM:
    """The model without memory for its weights."""
    spec = ModelSpec.from_config(config)
    with torch.device("meta"):
        ops = ops_for(torch.device("cpu"), torch.float32)
        return registry.build(spec, Layers(ops, SINGLE_RANK, spec.quantization))


@pytest.mark.parametrize("checkpoint", ACCEPTED + GEMMA4 + VENDORS, ids=lambda checkpoint: checkpoint.name)
def test_a_published_config_asks_for_the_tensors_that_are_published_with_it(checkpoint: Accepted) -> None:
    model = built(checkpoint.config)
    wanted = set(places_of(model))

    for module, format in checkpoint.modules.items():
        name = model.source_name(f"{module}.")
        found = {tensor.removeprefix(name) for tensor in wanted if tensor.startswith(name)} - BIASES
        assert found == TENSORS[format], module
    for tensor in checkpoint.unused:
        assert model.source_name(tensor) not in wanted
        assert model.ignores(model.source_name(tensor)), tensor


@pytest.mark.parametrize("checkpoint", REFUSED, ids=lambda checkpoint: checkpoint.name)
def test_a_config_that_is_refused_names_the_field_its_value_and_what_to_use(checkpoint: Refused) -> None:
    with pytest.raises(UnsupportedModel) as refusal:
        built(checkpoint.config)

    message = str(refusal.value)
    for word in (*checkpoint.named, "use "):
        assert word in message
