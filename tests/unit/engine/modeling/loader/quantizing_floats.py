"""Formats of weights in 4-bit floats, and those of bitsandbytes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from tests.unit.engine.modeling.loader.quantizing import FP8, Format, Split

__all__ = ["BITSANDBYTES_FORMATS", "FP4_FORMATS"]

_FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def _nvfp4(names: tuple[str, str, str], *, divided: bool) -> Split:
    def split(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        grouped = weight.unflatten(1, (-1, 16))
        factor = weight.abs().max() / 448 / 6
        factor = 1 / factor if divided else factor
        scale = grouped.abs().amax(2, keepdim=True) / 6
        scale = (scale * factor if divided else scale / factor).to(FP8)
        exact = scale.float() * (1 / factor if divided else factor)
        magnitudes = (grouped.abs() / exact).unsqueeze(3)
        codes = (magnitudes - _FP4).abs().argmin(3)
        values = torch.where(grouped < 0, -_FP4[codes], _FP4[codes]) * exact
        codes = (codes + 8 * (grouped < 0)).flatten(1).to(torch.uint8)
        stored = codes[:, ::2] | codes[:, 1::2] << 4, scale.squeeze(2), factor
        return dict(zip(names, stored, strict=True)), values.flatten(1)

    return split


_NVFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}


def _mxfp4(names: tuple[str, str]) -> Split:
    def split(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        grouped = weight.unflatten(1, (-1, 32))
        powers = torch.ceil(torch.log2(grouped.abs().amax(2, keepdim=True) / 6))
        codes = ((grouped.abs() / torch.exp2(powers)).unsqueeze(3) - _FP4).abs().argmin(3)
        values = torch.where(grouped < 0, -_FP4[codes], _FP4[codes]) * torch.exp2(powers)
        codes = (codes + 8 * (grouped < 0)).flatten(1).to(torch.uint8)
        stored = codes[:, ::2] | codes[:, 1::2] << 4, (powers[:, :, 0] + 127).to(torch.uint8)
        return dict(zip(names, stored, strict=True)), values.flatten(1)

    return split


_QUARK = {
    "quant_method": "quark",
    "exclude": ["lm_head", "*.mlp.gate", "re:.*shared_expert_gate"],
    "export": {"pack_method": "reorder", "weight_format": "real_quantized"},
    "layer_quant_config": {},
}
_OF_QUARK = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
FP4_FORMATS: Mapping[str, Format] = {
    "mxfp4, compressed": Format(
        {
            "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized",
            "ignore": ["lm_head", "re:.*gate$"],
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
                }
            },
        },
        _mxfp4(("weight_packed", "weight_scale")),
    ),
    "mxfp4 of quark": Format(
        _QUARK | {"global_quant_config": {"weight": _OF_QUARK, "input_tensors": {"dtype": "fp4"}}},
        _mxfp4(("weight", "weight_scale")),
    ),
    "nvfp4, compressed": Format(
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "ignore": ["lm_head", "re:.*gate$"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": _NVFP4}},
        },
        _nvfp4(("weight_packed", "weight_scale", "weight_global_scale"), divided=True),
    ),
    "nvfp4 of modelopt": Format(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*.mlp.gate"]},
        _nvfp4(("weight", "weight_scale", "weight_scale_2"), divided=False),
    ),
}

_NF4 = torch.tensor(
    [
        *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.7229568, 1.0),
    ]
)
_BLOCK = 64


def _nf4(dtype: str, *, nested: bool) -> Split:
    """Blocks of 64 values in a row of the flat weight, high bits first, as bitsandbytes packs them."""

    def split(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        blocks = weight.reshape(-1, _BLOCK)
        largest = blocks.abs().amax(1)
        state = {"quant_type": "nf4", "blocksize": _BLOCK, "dtype": dtype, "shape": list(weight.shape)}
        parts = {"weight.absmax": largest}
        if nested:
            offset = float(largest.mean())
            table = torch.linspace(-1, 1, 256)
            groups = torch.nn.functional.pad(largest - offset, (0, -len(largest) % 256)).view(-1, 256)
            scales = groups.abs().amax(1)
            found = ((groups / scales.unsqueeze(1)).unsqueeze(2) - table).abs().argmin(2)
            largest = (table[found] * scales.unsqueeze(1)).flatten()[: len(largest)] + offset
            parts = {
                "weight.absmax": found.flatten()[: len(largest)].to(torch.uint8),
                "weight.nested_absmax": scales,
                "weight.nested_quant_map": table,
            }
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        codes = ((blocks / largest.unsqueeze(1)).unsqueeze(2) - _NF4).abs().argmin(2)
        values = (_NF4[codes] * largest.unsqueeze(1)).view(weight.shape)
        packed = codes.flatten().to(torch.uint8)
        parts |= {
            "weight": (packed[::2] << 4 | packed[1::2]).unsqueeze(1),
            "weight.quant_map": _NF4.clone(),
            "weight.quant_state.bitsandbytes__nf4": torch.tensor([*json.dumps(state).encode()]).byte(),
        }
        return parts, values.to(getattr(torch, dtype)).float()

    return split


def _llm_int8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    largest = weight.abs().amax(1)
    stored = (weight / largest.unsqueeze(1) * 127).round().to(torch.int8)
    parts = {"weight": stored, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, stored * (largest / 127).unsqueeze(1)


_NF4_CONFIG = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": "uint8"}
BITSANDBYTES_FORMATS: Mapping[str, Format] = {
    "nf4": Format(_NF4_CONFIG, _nf4("float32", nested=False)),
    "nf4 with quantized scales": Format(
        _NF4_CONFIG | {"bnb_4bit_use_double_quant": True, "llm_int8_skip_modules": ["lm_head"]},
        _nf4("bfloat16", nested=True),
    ),
    "int8 of bitsandbytes": Format({"quant_method": "bitsandbytes", "load_in_8bit": True}, _llm_int8),
}
