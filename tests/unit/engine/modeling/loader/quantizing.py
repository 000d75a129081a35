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

__all__ = ["FP8_FORMATS", "INT4_FORMATS", "INT8_FORMATS", "Format", "Split", "rewrite"]

FP8 = torch.float8_e4m3fn
_LINEAR = re.compile(r"(self_attn|mlp|block_sparse_moe).*\.(\w+_proj|kv_a_proj_with_mqa|w[123])\.weight$")

Split = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
"""A weight [out, in] -> the tensors that a checkpoint has in its place, and the values they stand for."""


class Format:
    def __init__(self, config: Mapping[str, Any], split: Split) -> None:
        self.config = config
        self.split = split


def rewrite(
    source: Path, quantized: Path, dense: Path, format: Format, linear: re.Pattern[str] = _LINEAR
) -> None:
    """Write `source` quantized, and another folder with the same values unquantized.

    `linear`: names of the weights that are quantized.
    """
    tensors, stored, values = load_file(source / "model.safetensors"), {}, {}
    for name, tensor in tensors.items():
        if not linear.search(name):
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


def _with_static_scales(split: Split) -> Split:
    """And with scales of activations, of which nothing may depend."""

    def also(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, values = split(weight)
        return parts | {"input_scale": torch.tensor(7.0)}, values

    return also


def _clipped(split: Split) -> Split:
    """And with a bound of activations, of which nothing may depend."""

    def also(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, values = split(weight)
        return parts | {"input_scale_ub": torch.tensor([7.0])}, values

    return also


def _spelled(split: Split, names: Mapping[str, str]) -> Split:
    """With other names of tensors."""

    def renamed(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, values = split(weight)
        return {names.get(name, name): part for name, part in parts.items()}, values

    return renamed


def _exponents(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Groups of 32 input features, which share a power of two."""
    groups = weight.unflatten(1, (-1, 32))
    powers = torch.ceil(torch.log2(groups.abs().amax(2, keepdim=True) / 448))
    stored = (groups / torch.exp2(powers)).to(FP8)
    values = (stored.float() * torch.exp2(powers)).flatten(1)
    return {"weight": stored.flatten(1), "weight_scale": (powers[:, :, 0] + 127).to(torch.uint8)}, values


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
    "fp8 per tensor with static activations": Format(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head", "mlp.gate"]},
        _with_static_scales(_tensor),
    ),
    "fp8 per tensor, as transformers writes it": Format(
        {
            "quant_method": "fp8",
            "activation_scheme": "static",
            "fmt": "float8_e4m3fn",
            "weight_block_size": None,
        },
        _spelled(
            _with_static_scales(_tensor),
            {"weight_scale": "weight_scale_inv", "input_scale": "activation_scale"},
        ),
    ),
    "fp8 per tensor, as Mistral writes it": Format(
        {"quant_method": "fp8", "activation_scheme": "static"},
        _spelled(
            _with_static_scales(_tensor), {"weight_scale": "qscale_weight", "input_scale": "qscale_act"}
        ),
    ),
    "fp8 per channel with static activations": Format(
        _compressed({"strategy": "channel"}, {"strategy": "tensor", "dynamic": False}),
        _with_static_scales(_rows),
    ),
    "fp8 of modelopt": Format(
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*.mlp.gate"]},
        _with_static_scales(_tensor),
    ),
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
    "fp8 per channel, of FBGEMM": Format(
        {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head", "gate", "shared_expert_gate"]},
        _clipped(_rows),
    ),
    "mxfp8": Format(
        {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head", "*.mlp.gate"]},
        _exponents,
    ),
    "mxfp8, with other names": Format(
        {
            "quant_method": "mxfp8",
            "weight_block_size": [1, 32],
            "modules_to_not_convert": ["lm_head", "mlp.gate"],
        },
        _spelled(_exponents, {"weight_scale": "weight_scale_inv"}),
    ),
}


def _integers(
    weight: Tensor, group: int, symmetric: bool, bits: int = 4
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unsigned values [out, in], zero points and scales [out, groups], and the weight that they stand for."""
    grouped, largest = weight.unflatten(1, (-1, group)), (1 << bits) - 1
    if symmetric:
        scale = grouped.abs().amax(2, keepdim=True) / (largest // 2)
        zero = torch.full_like(scale, 1 << bits - 1)
    else:
        low, high = grouped.amin(2, keepdim=True).clamp(max=0), grouped.amax(2, keepdim=True).clamp(min=0)
        scale = (high - low) / largest
        zero = (-low / scale).round().clamp(1, largest)  # GPTQ's first format stores no 0
    scale = scale.half().float()
    values = (grouped / scale + zero).round().clamp(0, largest)
    exact = ((values - zero) * scale).flatten(1)
    return values.flatten(1).int(), zero.squeeze(2).int(), scale.squeeze(2), exact


def _words(values: Tensor, positions: Sequence[int] = range(8), bits: int = 4) -> Tensor:
    """[..., n * m] -> [..., n] int32, m values in each; `positions`: which one is in each place, lowest bits
    first."""
    count = 32 // bits
    words = torch.zeros(*values.shape[:-1], values.shape[-1] // count, dtype=torch.int64)
    for place, position in enumerate(positions[:count]):
        words |= values[..., position::count].long() << (bits * place)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def _awq(group: int) -> Split:
    def split(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        values, zero, scale, exact = _integers(weight, group, symmetric=False)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        tensors = {"qweight": _words(values.t(), order), "qzeros": _words(zero.t(), order)}
        return tensors | {"scales": scale.t().half()}, exact

    return split


def _gptq(group: int, symmetric: bool, offset: int, *, bits: int = 4, act_order: bool = False) -> Split:
    def split(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        features = weight.shape[1]
        order = torch.arange(features)
        if act_order:  # the same for all projections of an input
            order = torch.randperm(features, generator=torch.Generator().manual_seed(features))
        back = order.argsort()
        values, zero, scale, exact = _integers(weight[:, order], group, symmetric, bits)
        tensors = {
            "qweight": _words(values[:, back], bits=bits).t(),
            "qzeros": _words(zero.t() - offset, bits=bits),
            "scales": scale.t().half(),
            "g_idx": back.div(group, rounding_mode="floor").int(),
        }
        return tensors, exact[:, back]

    return split


def _packed(group: int, symmetric: bool, bits: int) -> Split:
    def split(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        values, zero, scale, exact = _integers(weight, group or weight.shape[1], symmetric, bits)
        tensors = {"weight_packed": _words(values, bits=bits), "weight_scale": scale}
        if not symmetric:
            tensors["weight_zero_point"] = _words(zero.t(), bits=bits).t()
        return tensors | {"weight_shape": torch.tensor(weight.shape)}, exact

    return split


def _signed(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """8 bits per channel, as llm-compressor stores them for integer activations."""
    values, _, scale, exact = _integers(weight, weight.shape[1], symmetric=True, bits=8)
    return {"weight": (values - 128).to(torch.int8), "weight_scale": scale}, exact


def _compressed_integers(
    group: int, symmetric: bool, bits: int = 4, split: Split | None = None, **config: Any
) -> Format:
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "group" if group else "channel",
        "group_size": group or None,
    }
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    whole = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head", "re:.*gate$"],
        "config_groups": {"group_0": scheme},
    }
    return Format(whole | config, split or _packed(group, symmetric, bits))


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
    "gptq with act-order": Format(
        _GPTQ | {"group_size": 64, "desc_act": True}, _gptq(64, False, 1, act_order=True)
    ),
    "int4 packed": _compressed_integers(128, symmetric=True),
    "int4 packed with zero points": _compressed_integers(32, symmetric=False),
    "int4 packed per channel": _compressed_integers(0, symmetric=True),
}

INT8_FORMATS: Mapping[str, Format] = {
    "gptq in 8 bits": Format(
        _GPTQ | {"bits": 8, "group_size": 128, "sym": True}, _gptq(128, True, 1, bits=8)
    ),
    "gptq in 8 bits with act-order": Format(
        _GPTQ | {"bits": 8, "group_size": 32, "desc_act": True}, _gptq(32, False, 1, bits=8, act_order=True)
    ),
    "int8 packed": _compressed_integers(128, symmetric=True, bits=8),
    "int8 packed with zero points": _compressed_integers(64, symmetric=False, bits=8),
    "int8 per channel": _compressed_integers(
        0, symmetric=True, bits=8, split=_signed, format="int-quantized"
    ),
}
