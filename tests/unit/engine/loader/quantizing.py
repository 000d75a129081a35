"""Rewrites model folders in the formats of quantized checkpoints, and in the values that these stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

__all__ = ["FP8_FORMATS", "INT4_FORMATS", "Format", "rewrite"]

FP8 = torch.float8_e4m3fn
_LINEAR = re.compile(r"(self_attn|mlp|block_sparse_moe).*\.(\w+_proj|kv_a_proj_with_mqa|w[123])\.weight$")

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


def _integers(weight: Tensor, group: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values 0 to 15 [out, in], zero points and scales [out, groups], and the weight that they stand for."""
    grouped = weight.unflatten(1, (-1, group))
    if symmetric:
        scale = grouped.abs().amax(2, keepdim=True) / 7
        zero = torch.full_like(scale, 8)
    else:
        low, high = grouped.amin(2, keepdim=True).clamp(max=0), grouped.amax(2, keepdim=True).clamp(min=0)
        scale = (high - low) / 15
        zero = (-low / scale).round().clamp(1, 15)  # GPTQ's first format stores no 0
    scale = scale.half().float()
    values = (grouped / scale + zero).round().clamp(0, 15)
    exact = ((values - zero) * scale).flatten(1)
    return values.flatten(1).int(), zero.squeeze(2).int(), scale.squeeze(2), exact


def _words(values: Tensor, positions: Sequence[int] = range(8)) -> Tensor:
    """[..., 8 n] -> [..., n] int32; `positions`: which value is in each place, lowest bits first."""
    words = torch.zeros(*values.shape[:-1], values.shape[-1] // 8, dtype=torch.int64)
    for place, position in enumerate(positions):
        words |= values[..., position::8].long() << (4 * place)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def _awq(group: int) -> Split:
    def split(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        values, zero, scale, exact = _integers(weight, group, symmetric=False)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        tensors = {"qweight": _words(values.t(), order), "qzeros": _words(zero.t(), order)}
        return tensors | {"scales": scale.t().half()}, exact

    return split


def _gptq(group: int, symmetric: bool, offset: int) -> Split:
    def split(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        values, zero, scale, exact = _integers(weight, group, symmetric)
        tensors = {"qweight": _words(values).t(), "qzeros": _words(zero.t() - offset)}
        order = torch.arange(weight.shape[1]).div(group, rounding_mode="floor").int()
        return tensors | {"scales": scale.t().half(), "g_idx": order}, exact

    return split


def _packed(group: int, symmetric: bool) -> Split:
    def split(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        values, zero, scale, exact = _integers(weight, group or weight.shape[1], symmetric)
        tensors = {"weight_packed": _words(values), "weight_scale": scale}
        if not symmetric:
            tensors["weight_zero_point"] = _words(zero.t()).t()
        return tensors | {"weight_shape": torch.tensor(weight.shape)}, exact

    return split


def _compressed_int4(group: int, symmetric: bool) -> Format:
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group}
    if not group:
        weights |= {"strategy": "channel", "group_size": None}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head", "re:.*gate$"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
    }
    return Format(config, _packed(group, symmetric))


_AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
_GPTQ = {"quant_method": "gptq", "bits": 4, "desc_act": False}

INT4_FORMATS: Mapping[str, Format] = {
    "awq": Format(_AWQ | {"group_size": 128}, _awq(128)),
    "awq in groups of 32": Format(_AWQ | {"group_size": 32}, _awq(32)),
    "gptq": Format(_GPTQ | {"group_size": 128, "sym": True}, _gptq(128, True, offset=1)),
    "gptq with zero points": Format(_GPTQ | {"group_size": 64, "sym": False}, _gptq(64, False, offset=1)),
    "gptq of the second format": Format(
        _GPTQ | {"group_size": 32, "checkpoint_format": "gptq_v2"}, _gptq(32, False, offset=0)
    ),
    "int4 packed": _compressed_int4(128, symmetric=True),
    "int4 packed with zero points": _compressed_int4(32, symmetric=False),
    "int4 packed per channel": _compressed_int4(0, symmetric=True),
}
