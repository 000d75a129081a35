"""Writes tests/unit/engine/modeling/loader/compressed_tensors with the format's own library.

    pip install compressed-tensors==0.20.0
    python scripts/compressed_tensors_fixtures.py

Each folder is a checkpoint of a random Llama, beside `logits.safetensors`: those of the weights that the
library makes of the checkpoint again.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from compressed_tensors import ModelCompressor
from compressed_tensors.compressors.nvfp4 import base as nvfp4
from compressed_tensors.quantization import (
    QuantizationConfig,
    apply_quantization_config,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).resolve().parent.parent / "tests/unit/engine/modeling/loader/compressed_tensors"
PRESETS = ("W4A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4")
IDS = torch.arange(20) * 7 % 32

# By default the library rounds the values of 4-bit floats to bfloat16.
nvfp4.unpack_fp4_from_uint8 = partial(nvfp4.unpack_fp4_from_uint8, dtype=torch.float32)


def random_llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def calibrate(module: Any, arguments: Any) -> None:
    """Fill in a layer's scales and zero points from the range of its weights."""
    weight, factor = module.weight.data, None
    match arguments.strategy:
        case "group" | "tensor_group":
            grouped, axes = weight.unflatten(1, (-1, arguments.group_size)), (2,)
        case "channel":
            grouped, axes = weight.unflatten(1, (1, -1)), (2,)
        case "tensor":
            grouped, axes = weight.view(1, -1), (1,)
        case _:
            rows, columns = arguments.block_structure
            grouped, axes = weight.unflatten(0, (-1, rows)).unflatten(2, (-1, columns)), (1, 3)
    if hasattr(module, "weight_global_scale"):
        factor = generate_gparam(weight.min(), weight.max())
        module.weight_global_scale.data.copy_(factor)
    scale, zero = calculate_qparams(grouped.amin(axes), grouped.amax(axes), arguments, factor)
    module.weight_scale.data.copy_(scale)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero)


def write(preset: str, folder: Path) -> None:
    model = random_llama()
    scheme = preset_name_to_scheme(preset, ["Linear"])
    apply_quantization_config(
        model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
    )
    for module in model.modules():
        if (own := getattr(module, "quantization_scheme", None)) is not None and own.weights is not None:
            calibrate(module, own.weights)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    compressor.decompress_model(model)
    plain = random_llama()
    plain.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        save_file({"logits": plain(IDS[None]).logits[0]}, folder / "logits.safetensors")


if __name__ == "__main__":
    for name in PRESETS:
        write(name, FOLDER / name)
