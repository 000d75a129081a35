"""Rewrites model folders in the formats of quantized checkpoints, and in the values that these stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

__all__ = ["FP8_FORMATS", "Format", "rewrite"]

FP8 = torch.float8_e4m3fn
_LINEAR = re.compile(r"(self_attn|mlp|block_sparse_moe).*\.(\w+_proj|w[123])\.weight$")

Split = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
"""A weight [out, in] -> the tensors that a checkpoint has in its place, and the values they stand for."""


class Format:
    def __init__(self, config: Mapping[str, Any], split: Split) -> None:
        self.config = config
        self.split = split


def rewrite(source: Path, quantized: Path, dense: Path, format: Format) -> None:
    """Write `source` quantized, and another folder with the same values unquantized."""
    tensors, stored, values = load_file(source / "model.safetensors"), {}, {}
    for name, tensor in tensors.items():
        if not _LINEAR.search(name):
            stored[name] = values[name] = tensor
            continue
        parts, values[name] = format.split(tensor)
        stored |= {name.removesuffix("weight") + part: value for part, value in parts.items()}
    config = json.loads((source / "config.json").read_text())
    for folder, content, extra in (
        (quantized, stored, {"quantization_config": format.config}),
        (dense, values, {}),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config | extra))
        save_file({name: value.contiguous() for name, value in content.items()}, folder / "model.safetensors")


def _rows(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    stored = (weight / scale).to(FP8)
    return {"weight": stored, "weight_scale": scale}, stored.float() * scale


def _tensor(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = weight.abs().max() / 448
    stored = (weight / scale).to(FP8)
    return {"weight": stored, "weight_scale": scale}, stored.float() * scale


def _blocks(name: str) -> Split:
    def split(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        rows, columns = weight.shape
        padded = torch.nn.functional.pad(weight, (0, -columns % 128, 0, -rows % 128))
        blocks = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
        scale = blocks.abs().amax((1, 3), keepdim=True) / 448
        stored = (blocks / scale).to(FP8)
        value = (stored.float() * scale).flatten(2).flatten(0, 1)[:rows, :columns]
        whole = stored.float().flatten(2).flatten(0, 1)[:rows, :columns].to(FP8)
        return {"weight": whole, name: scale[:, 0, :, 0]}, value

    return split


def _compressed(weights: Mapping[str, Any], activations: Mapping[str, Any]) -> dict[str, Any]:
    bits = {"num_bits": 8, "type": "float", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head", "re:.*gate$"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": bits | {"dynamic": False} | weights,
                "input_activations": bits | {"dynamic": True} | activations,
            }
        },
    }


FP8_FORMATS: Mapping[str, Format] = {
    "fp8 per channel": Format(_compressed({"strategy": "channel"}, {"strategy": "token"}), _rows),
    "fp8 per tensor": Format({"quant_method": "fp8", "activation_scheme": "dynamic"}, _tensor),
    "fp8 in blocks": Format(
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "mlp.gate"],
        },
        _blocks("weight_scale_inv"),
    ),
    "fp8 in blocks, compressed": Format(
        _compressed(
            {"strategy": "block", "block_structure": [128, 128]}, {"strategy": "group", "group_size": 128}
        ),
        _blocks("weight_scale"),
    ),
}
