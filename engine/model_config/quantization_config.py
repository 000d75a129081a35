"""Reads `quantization_config` of config.json, as each tool writes it.

A field that changes values is honoured, or refused with its value and those that Baton reads.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from engine.model_config.errors import UnsupportedModel
from engine.model_config.formats.checks import Config, choice, of_all, require, static_scales
from engine.model_config.formats.compressed import compressed_tensors
from engine.model_config.formats.vendors import bitsandbytes, fbgemm, quark
from engine.model_config.quantization import (
    FP8_BLOCK,
    MX_BLOCK,
    NVFP4_BLOCK,
    Nvfp4Names,
    Packing,
    Quantization,
    WeightFormat,
)

_ALGORITHMS: Final = ("FP8", "NVFP4", "W4A16_NVFP4", "MXFP8")
"""Algorithms of Model Optimizer. Both of NVFP4 have the same weights, and activations stay in 16 or 32 bits:
products of 4-bit floats need a later GPU than Hopper."""
_MIXED: Final = "MIXED_PRECISION"
_PRODUCERS: Final = {"modelopt": "modelopt"}
"""Methods by the tool that wrote a configuration without one."""
_FP8_SPELLINGS: Final = (
    ("weight_scale_inv", "weight_scale"),
    ("activation_scale", "input_scale"),
    ("qscale_weight", "weight_scale"),
    ("qscale_act", "input_scale"),
)
"""Names of the scales of tensors: those of transformers and of Mistral, and the ones that are read."""


def read_quantization(config: Config) -> Quantization | None:
    """Quantization in a parsed config.json; None: its weights are not quantized. Raises UnsupportedModel."""
    fields: Config = config.get("quantization_config") or config.get("compression_config") or {}
    if not fields:
        return None
    producer = str((fields.get("producer") or {}).get("name"))
    method = fields.get("quant_method") or _PRODUCERS.get(producer, "an unnamed method")
    reader = _READERS.get(method)
    if reader is None:
        known = ", ".join(sorted(_READERS))
        raise UnsupportedModel(
            f"quantization_config with quant_method={method!r} is not supported; use a checkpoint in one of"
            f" {known}, or an unquantized one with --quantization fp8"
        )
    return reader(fields)


def _fp8(fields: Config) -> Quantization:
    """FP8 of transformers, as in Qwen3-FP8 and DeepSeek-V3; also AutoFP8's, which has no blocks."""
    require(fields, "fp8", "fmt", "e4m3", "float8_e4m3fn")
    left_out = (*(fields.get("modules_to_not_convert") or fields.get("ignored_layers") or ()), "lm_head")
    blocks = fields.get("weight_block_size")
    if blocks is None:
        unused = static_scales(fields.get("activation_scheme") == "static")
        return Quantization(
            format=WeightFormat.FP8_ROWS,
            per_tensor=True,
            spellings=_FP8_SPELLINGS,
            unused=unused,
            left_out=left_out,
        )
    require(fields, "fp8", "activation_scheme", "dynamic")
    require(fields, "fp8", "weight_block_size", [FP8_BLOCK, FP8_BLOCK])
    return Quantization(format=WeightFormat.FP8_BLOCKS, scale="weight_scale_inv", left_out=left_out)


def _modelopt(fields: Config) -> Quantization:
    """Formats of NVIDIA's Model Optimizer: FP8 per tensor with static activations, NVFP4, or by module."""
    patterns = fields.get("ignore") or fields.get("exclude_modules") or ()
    left_out = tuple(f"re:{fnmatch.translate(name)}" if "*" in name else name for name in patterns)
    if choice(fields, "modelopt", "quant_algo", *_ALGORITHMS, _MIXED) != _MIXED:
        return _modelopt_format(fields, left_out=("lm_head", *left_out))
    modules: dict[str, list[str]] = {}
    for module, of_module in (fields.get("quantized_layers") or {}).items():
        _modelopt_format(of_module)
        modules.setdefault(of_module["quant_algo"], []).append(module)
    if not modules:
        raise UnsupportedModel(
            f"modelopt with quant_algo={_MIXED!r} has no quantized_layers; use one with them"
        )
    return of_all(
        [
            _modelopt_format({"quant_algo": algorithm}, targets=tuple(named), left_out=left_out)
            for algorithm, named in sorted(modules.items(), reverse=True)
        ]
    )


def _modelopt_format(fields: Config, **modules: Any) -> Quantization:
    """`modules`: as arguments of `Quantization`."""
    if choice(fields, "modelopt", "quant_algo", *_ALGORITHMS) == "FP8":
        unused = static_scales(True)
        return Quantization(format=WeightFormat.FP8_ROWS, per_tensor=True, unused=unused, **modules)
    if fields["quant_algo"] == "MXFP8":
        require(fields, "modelopt", "group_size", MX_BLOCK)
        return Quantization(format=WeightFormat.MXFP8, **modules)
    require(fields, "modelopt", "group_size", NVFP4_BLOCK)
    unused = ("input_scale",)
    return Quantization(format=WeightFormat.NVFP4, nvfp4=Nvfp4Names.MODELOPT, unused=unused, **modules)


def _awq(fields: Config) -> Quantization:
    require(fields, "awq", "bits", 4)
    require({"version": str(fields.get("version") or "gemm").lower()}, "awq", "version", "gemm")
    require(fields, "awq", "zero_point", True)
    return Quantization(
        format=WeightFormat.INTEGERS,
        packing=Packing.AWQ,
        group=_group(fields),
        zero_points=True,
        left_out=(*(fields.get("modules_to_not_convert") or ()), "lm_head"),
    )


def _gptq(fields: Config) -> Quantization:
    """Zero points are stored less 1 in the first format of these checkpoints, as they are in the second."""
    require(fields, "gptq", "bits", 4, 8)
    require(fields, "gptq", "checkpoint_format", "gptq", "gptq_v2")
    require(fields, "gptq", "is_marlin_format", False)
    group = _group(fields)
    act_order = bool(fields.get("desc_act")) and group is not None
    head = () if fields.get("lm_head") else ("lm_head",)
    return Quantization(
        format=WeightFormat.INTEGERS,
        packing=Packing.GPTQ,
        bits=int(fields.get("bits") or 4),
        act_order=act_order,
        group=group,
        zero_points=True,
        zero_offset=0 if fields.get("checkpoint_format") == "gptq_v2" else 1,
        unused=() if act_order else ("g_idx",),
        targets=tuple(_flat(fields.get("modules_in_block_to_quantize") or ())),
        left_out=(*(fields.get("modules_to_not_convert") or ()), *_skipped(fields), *head),
    )


def _auto_round(fields: Config) -> Quantization:
    """AutoRound's own configuration of weights that it packs as GPTQ or AWQ do."""
    packing = choice(fields, "auto-round", "packing_format", *_AUTO_ROUND)
    require(fields, "auto-round", "data_type", "int")
    kept = []
    for module, settings in (fields.get("extra_config") or {}).items():
        if settings.get("bits", 16) < 16:
            raise UnsupportedModel(
                f"auto-round with extra_config[{module!r}]={settings!r} is not supported; use a checkpoint"
                " with the same settings for all quantized layers"
            )
        kept.append(module)
    blocks = fields.get("block_name_to_quantize") or ()
    plain = {"desc_act": False, "zero_point": True, "modules_to_not_convert": kept}
    read = _AUTO_ROUND[packing]({**fields, **plain})
    return replace(read, targets=tuple(blocks.split(",") if isinstance(blocks, str) else _flat(blocks)))


def _flat(modules: Iterable[str | Iterable[str]]) -> Iterable[str]:
    """Names that optimum lists by the order in which it quantizes them."""
    for module in modules:
        yield from (module,) if isinstance(module, str) else module


def _skipped(fields: Config) -> Iterable[str]:
    """Modules that GPTQModel has left out by a pattern; others have settings of their own."""
    for pattern, settings in (fields.get("dynamic") or {}).items():
        if not pattern.startswith("-:"):
            raise UnsupportedModel(
                f"gptq with dynamic[{pattern!r}]={settings!r} is not supported; use a checkpoint with the"
                " same settings for all quantized layers"
            )
        yield "re:" + pattern.removeprefix("-:")


def _mxfp4(fields: Config) -> Quantization:
    """MXFP4 of gpt-oss, which quantizes experts only."""
    return Quantization(format=WeightFormat.MXFP4, group=MX_BLOCK, targets=("experts",))


def _mxfp8(fields: Config) -> Quantization:
    """MXFP8 with the names of transformers' FP8."""
    require(fields, "mxfp8", "fmt", "e4m3", "float8_e4m3fn")
    require(fields, "mxfp8", "weight_block_size", [1, MX_BLOCK])
    left_out = fields.get("modules_to_not_convert") or fields.get("ignored_layers") or ()
    return Quantization(format=WeightFormat.MXFP8, spellings=_FP8_SPELLINGS, left_out=(*left_out, "lm_head"))


def _gguf(fields: Config) -> Quantization:
    """Format of our own conversion of GGUF files."""
    return Quantization(
        format=WeightFormat.GGUF,
        group=int(fields["group_size"]),
        zero_points=bool(fields["offsets"]),
        left_out=(*fields["modules_to_not_convert"], "lm_head"),
    )


def _group(fields: Config) -> int | None:
    size = int(fields.get("group_size", 128))
    return None if size == -1 else size


_AUTO_ROUND: Final = {"auto_round:auto_gptq": _gptq, "auto_round:auto_awq": _awq}
"""Readers by AutoRound's names of how weights are packed."""
_READERS: Final = {
    "auto-round": _auto_round,
    "awq": _awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fbgemm_fp8": fbgemm,
    "fp8": _fp8,
    "gguf": _gguf,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
    "mxfp8": _mxfp8,
    "quark": quark,
}
