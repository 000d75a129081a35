"""Checkpoints with several formats are the model with the values that all of their tensors stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.modeling.loader.model_loader import load_model
from tests.unit.engine.modeling.loader.quantizing import (
    FP8_FORMATS,
    INT4_FORMATS,
    Format,
)
from tests.unit.engine.modeling.loader.quantizing_floats import FP4_FORMATS
from tests.unit.engine.modeling.loader.test_quantized_weights import logits, model

_LINEAR: Final = re.compile(r".*(self_attn|mlp|block_sparse_moe).*\.(\w+_proj|w[123])\.weight")
_FP8: Final = FP8_FORMATS["fp8 per tensor with static activations"]
_NVFP4: Final = FP4_FORMATS["nvfp4 of modelopt"]
Choose = Callable[[str], Format | None]


def write(name: str, folder: Path, choose: Choose, config: Mapping[str, Any]) -> tuple[Path, Path, list[str]]:
    """The model in the formats that `choose` has, the same values unquantized, and what is quantized."""
    model(name).save_pretrained(folder / "source")
    stored: dict[str, Tensor] = {}
    values: dict[str, Tensor] = {}
    quantized: list[str] = []
    for tensor, value in load_file(folder / "source" / "model.safetensors").items():
        module = tensor.removesuffix(".weight")
        format = choose(module) if _LINEAR.fullmatch(tensor) else None
        if format is None:
            stored[tensor] = values[tensor] = value
            continue
        quantized.append(module)
        parts, values[tensor] = format.split(value)
        stored |= {f"{module}.{part}": part_value for part, part_value in parts.items()}
    shape = json.loads((folder / "source" / "config.json").read_text())
    for name, tensors, extra in (
        ("quantized", stored, {"quantization_config": config}),
        ("dense", values, {}),
    ):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(shape | extra))
        contiguous = {key: value.contiguous() for key, value in tensors.items()}
        save_file(contiguous, folder / name / "model.safetensors")
    return folder / "quantized", folder / "dense", quantized


def mixed(module: str) -> Format:
    return _FP8 if "self_attn" in module else _NVFP4


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_nvidias_mixed_precision_names_the_format_of_each_module(name: str, tmp_path: Path) -> None:
    """FP8 in attention, 4-bit floats in MLPs; experts are named together or one by one."""
    config: dict[str, Any] = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "ignore": ["lm_head"],
    }
    quantized, dense, modules = write(name, tmp_path, mixed, config)
    layers = {
        module.partition(".experts.")[0] + (".experts" if ".experts." in module else ""): {
            "quant_algo": "FP8" if mixed(module) is _FP8 else "W4A16_NVFP4",
            "group_size": 16,
        }
        for module in modules
    }
    shape = json.loads((quantized / "config.json").read_text())
    shape["quantization_config"]["quantized_layers"] = layers
    (quantized / "config.json").write_text(json.dumps(shape))

    spec = ModelSpec.from_folder(quantized)
    assert spec.quantization
    assert spec.bytes_per_dense_weight(2) == 1.0
    assert spec.bytes_per_weight(2) == 0.5 + 1 / 16
    expected = logits(load_model(dense))
    torch.testing.assert_close(logits(load_model(quantized)), expected, atol=1e-4, rtol=1e-4)


def test_each_group_of_compressed_tensors_has_its_targets(tmp_path: Path) -> None:
    fp8, integers = FP8_FORMATS["fp8 per channel"], INT4_FORMATS["int4 packed"]
    (of_fp8,), (of_integers,) = (each.config["config_groups"].values() for each in (fp8, integers))
    groups = {
        "group_0": of_fp8 | {"targets": ["re:.*self_attn.*"], "format": "float-quantized"},
        "group_1": of_integers | {"targets": ["Linear"], "format": "pack-quantized"},
    }
    config = integers.config | {"format": "mixed-precision", "config_groups": groups}

    def choose(module: str) -> Format:
        return fp8 if "self_attn" in module else integers

    quantized, dense, _ = write("llama", tmp_path, choose, config)
    expected = logits(load_model(dense))
    torch.testing.assert_close(logits(load_model(quantized)), expected, atol=1e-4, rtol=1e-4)


def test_weights_of_8_bits_with_activations_as_they_are(tmp_path: Path) -> None:
    fp8 = FP8_FORMATS["fp8 per channel"]
    (group,) = fp8.config["config_groups"].values()
    alone = {"group_0": group | {"input_activations": None}}
    quantized, dense, _ = write("llama", tmp_path, lambda _: fp8, fp8.config | {"config_groups": alone})

    spec = ModelSpec.from_folder(quantized)
    assert spec.quantization
    assert not spec.quantization.stays_on_gpus
    expected = logits(load_model(dense))
    torch.testing.assert_close(logits(load_model(quantized)), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("packing", "format"), [("auto_gptq", "gptq"), ("auto_awq", "awq")])
def test_autoround_packs_as_gptq_or_awq_do(packing: str, format: str, tmp_path: Path) -> None:
    config = {
        "quant_method": "auto-round",
        "packing_format": f"auto_round:{packing}",
        "bits": 4,
        "data_type": "int",
        "group_size": INT4_FORMATS[format].config["group_size"],
        "sym": True,
        "block_name_to_quantize": "model.layers",
        "extra_config": {"model.layers.0.self_attn.o_proj": {"bits": 16}},
    }

    def choose(module: str) -> Format | None:
        return None if module.endswith("0.self_attn.o_proj") else INT4_FORMATS[format]

    quantized, dense, _ = write("llama", tmp_path, choose, config)
    expected = logits(load_model(dense))
    torch.testing.assert_close(logits(load_model(quantized)), expected, atol=1e-4, rtol=1e-4)

    shape = json.loads((quantized / "config.json").read_text())
    shape["quantization_config"]["extra_config"] = {"model.layers.1.mlp.up_proj": {"bits": 8}}
    with pytest.raises(UnsupportedModel, match=r"extra_config\['model.layers.1.mlp.up_proj'\]"):
        ModelSpec.from_config(shape)


def test_projections_that_are_merged_need_one_format(tmp_path: Path) -> None:
    layers = {f"model.layers.{n}.self_attn.{p}_proj": {"quant_algo": "FP8"} for n in range(2) for p in "qk"}
    layers |= {f"model.layers.{n}.self_attn.v_proj": {"quant_algo": "NVFP4"} for n in range(2)}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    quantized, _, _ = write("llama", tmp_path, lambda _: None, config)

    with pytest.raises(
        UnsupportedModel, match=r"q_proj, .*v_proj are merged here, but have different formats"
    ):
        load_model(quantized)
