"""Reads `quantization_config` as AMD's Quark, FBGEMM and bitsandbytes write it."""

from __future__ import annotations

import fnmatch

from engine.model_config.formats.checks import Config, choice, refusal, require, static_scales
from engine.model_config.quantization import MX_BLOCK, Mxfp4Names, Quantization, WeightFormat


def fbgemm(fields: Config) -> Quantization:
    """FP8 per channel, as Meta has published Llama 3.1 405B. `activation_scale_ub` clips activations."""
    left_out = (*(fields.get("modules_to_not_convert") or ()), "lm_head")
    return Quantization(format=WeightFormat.FP8_ROWS, unused=("input_scale_ub",), left_out=left_out)


def bitsandbytes(fields: Config) -> Quantization:
    """Which modules are quantized is told by their tensors."""
    require(fields, "bitsandbytes", "bnb_4bit_quant_storage", "uint8")
    return Quantization(format=WeightFormat.BITSANDBYTES, bits=8 if fields.get("load_in_8bit") else 4)


def quark(fields: Config) -> Quantization:
    """MXFP4 and FP8 of AMD's Quark."""
    for field in ("layer_quant_config", "layer_type_quant_config"):
        if fields.get(field):
            raise refusal("quark", field, fields[field], [{}])
    scheme = fields.get("global_quant_config") or {}
    weights, activations = scheme.get("weight") or {}, scheme.get("input_tensors") or {}
    require(fields.get("export") or {}, "quark with export", "weight_format", "real_quantized")
    left_out = tuple(map(_pattern, fields.get("exclude") or ()))
    if choice(weights, "quark with weight", "dtype", "fp4", "fp8_e4m3") == "fp4":
        require(weights, "quark fp4", "qscheme", "per_group")
        require(weights, "quark fp4", "group_size", MX_BLOCK)
        require(weights, "quark fp4", "scale_format", "e8m0")
        names = Mxfp4Names.QUARK
        return Quantization(format=WeightFormat.MXFP4, group=MX_BLOCK, mxfp4=names, left_out=left_out)
    choice(weights, "quark fp8", "qscheme", "per_tensor")
    unused = static_scales(not activations.get("is_dynamic"))
    return Quantization(format=WeightFormat.FP8_ROWS, per_tensor=True, unused=unused, left_out=left_out)


def _pattern(name: str) -> str:
    """A regular expression, or the name of a module or of its end."""
    return f"re:{fnmatch.translate(name)}" if "*" in name and not name.startswith("re:") else name
