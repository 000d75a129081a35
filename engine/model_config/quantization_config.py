"""Reads `quantization_config` of config.json, as each tool writes it.

A field that changes values is honoured, or refused with its value and those that Baton reads.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from engine.model_config.errors import UnsupportedModel
from engine.model_config.quantization import (
    FP8_BLOCK,
    MX_BLOCK,
    NVFP4_BLOCK,
    Nvfp4Names,
    Packing,
    Quantization,
    WeightFormat,
)

Config = Mapping[str, Any]

_COMPRESSED: Final = "compressed-tensors"
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
    _require(fields, "fp8", "fmt", "e4m3", "float8_e4m3fn")
    left_out = (*(fields.get("modules_to_not_convert") or fields.get("ignored_layers") or ()), "lm_head")
    blocks = fields.get("weight_block_size")
    if blocks is None:
        unused = _static_scales(fields.get("activation_scheme") == "static")
        return Quantization(
            format=WeightFormat.FP8_ROWS,
            per_tensor=True,
            spellings=_FP8_SPELLINGS,
            unused=unused,
            left_out=left_out,
        )
    _require(fields, "fp8", "activation_scheme", "dynamic")
    _require(fields, "fp8", "weight_block_size", [FP8_BLOCK, FP8_BLOCK])
    return Quantization(format=WeightFormat.FP8_BLOCKS, scale="weight_scale_inv", left_out=left_out)


def _static_scales(given: bool) -> tuple[str, ...]:
    """Tensors that are not read where scales of activations are `given`.

    Activations are quantized token by token instead, which is at least as exact: no value exceeds the range,
    and no token's values are rounded in the units of the largest one that calibration saw.
    """
    return ("input_scale", "input_zero_point") if given else ()


def _compressed_tensors(fields: Config) -> Quantization | None:
    """Formats of llm-compressor; None: it has calibrated the scales of KV alone."""
    scheme = fields.get("kv_cache_scheme") or {}
    for field, value in (("num_bits", 8), ("type", "float"), ("strategy", "tensor"), ("dynamic", False)):
        _require(scheme, f"{_COMPRESSED} with kv_cache_scheme", field, value)
    # "dense" is how llm-compressor described zeros in weights that it stored as any others.
    _require(fields.get("sparsity_config") or {}, f"{_COMPRESSED} with sparsity_config", "format", "dense")
    if fields.get("transform_config"):
        raise UnsupportedModel(f"{_COMPRESSED} with a transform_config is not supported; use one without")
    groups = fields.get("config_groups") or {}
    if scheme and not groups:
        return None
    if not groups:
        raise UnsupportedModel(
            f"{_COMPRESSED} with config_groups {{}} is not supported; use one with a group"
        )
    return _of_all([_compressed_group(group, fields) for group in groups.values()])


def _compressed_group(group: Config, fields: Config) -> Quantization:
    targets = tuple(group.get("targets") or ())
    if not targets:
        raise UnsupportedModel(f"{_COMPRESSED} with targets={targets!r} is not supported; use ['Linear']")
    return _compressed_weights(
        group,
        group.get("format") or fields.get("format"),
        {"targets": () if "Linear" in targets else targets, "left_out": tuple(fields.get("ignore") or ())},
    )


def _of_all(formats: Sequence[Quantization]) -> Quantization:
    """One description of formats by module. One of them may be that of all modules that no other names.

    Raises UnsupportedModel.
    """
    named = sorted(formats, key=lambda each: bool(each.targets))
    if len(named) > 1 and not named[1].targets:
        raise UnsupportedModel(
            "two formats of all linear layers are not supported; use a checkpoint with one"
        )
    unused = tuple(dict.fromkeys(name for each in formats for name in each.unused))
    return replace(named[0], others=tuple(named[1:]), unused=unused)


def _compressed_weights(group: Config, packing: str | None, modules: Config) -> Quantization:
    """`modules`: those that are quantized, as arguments of `Quantization`."""
    weights, activations = group["weights"], group.get("input_activations")
    kind = (weights.get("num_bits"), weights.get("type"))
    if kind == (8, "float") and packing == "mxfp8-quantized":
        _require(weights, f"{_COMPRESSED} mxfp8", "group_size", MX_BLOCK)
        return Quantization(format=WeightFormat.MXFP8, **modules)
    if kind == (8, "float"):
        return _compressed_fp8(weights, activations, modules)
    if kind in ((4, "int"), (8, "int")) and activations is None and packing == "pack-quantized":
        return _compressed_integers(weights, modules)
    if kind == (4, "float") and packing == "nvfp4-pack-quantized":
        return _compressed_nvfp4(weights, modules)
    if kind == (8, "int") and packing == "int-quantized":
        return _compressed_int8(weights, activations or {}, modules)
    quantized = "quantized" if activations else "unquantized"
    raise UnsupportedModel(
        f"{_COMPRESSED} with format={packing!r}, {kind[0]}-bit {kind[1]} weights and {quantized} activations"
        " is not supported; use a checkpoint of the scheme FP8, FP8_DYNAMIC, FP8_BLOCK, W4A16, W8A16, W8A8"
        " or NVFP4"
    )


def _compressed_fp8(weights: Config, activations: Config | None, modules: Config) -> Quantization:
    _require(weights, _COMPRESSED, "symmetric", True)
    if activations is None:
        strategy = _choice(weights, f"{_COMPRESSED} fp8 of weights alone", "strategy", "tensor", "channel")
        rows = WeightFormat.FP8_ROWS
        return Quantization(format=rows, per_tensor=strategy == "tensor", weights_only=True, **modules)
    strategy = _choice(weights, f"{_COMPRESSED} fp8", "strategy", "tensor", "channel", "block")
    of_activations = f"{_COMPRESSED} with input_activations"
    if strategy == "block":
        _require(weights, _COMPRESSED, "block_structure", [FP8_BLOCK, FP8_BLOCK])
        _require(activations, of_activations, "dynamic", True)
        _require(activations, of_activations, "group_size", FP8_BLOCK)
        return Quantization(format=WeightFormat.FP8_BLOCKS, **modules)
    # A scale of activations is of a token, or of all tokens.
    _choice(activations, of_activations, "strategy", "token", "tensor")
    return Quantization(
        format=WeightFormat.FP8_ROWS,
        per_tensor=strategy == "tensor",
        unused=_static_scales(not activations.get("dynamic")),
        **modules,
    )


def _compressed_integers(weights: Config, modules: Config) -> Quantization:
    _require(weights, _COMPRESSED, "actorder", None, False, "weight", "static", "group")
    strategy = _choice(weights, f"{_COMPRESSED} integers", "strategy", "group", "channel")
    group = int(weights["group_size"]) if strategy == "group" else None
    return Quantization(
        format=WeightFormat.INTEGERS,
        packing=Packing.COMPRESSED,
        bits=int(weights["num_bits"]),
        act_order=weights.get("actorder") == "group" and group is not None,
        group=group,
        zero_points=not weights.get("symmetric", True),
        unused=("weight_shape",),
        **modules,
    )


def _compressed_int8(weights: Config, activations: Config, modules: Config) -> Quantization:
    """Activations keep their 16 or 32 bits, so they are more exact than the checkpoint asks for."""
    _require(weights, _COMPRESSED, "symmetric", True)
    _choice(weights, f"{_COMPRESSED} int8", "strategy", "channel")
    return Quantization(
        format=WeightFormat.INTEGERS,
        packing=Packing.NONE,
        bits=8,
        unused=_static_scales(activations.get("dynamic") is False),
        **modules,
    )


def _compressed_nvfp4(weights: Config, modules: Config) -> Quantization:
    """Activations keep their 16 or 32 bits: products of 4-bit floats need a later GPU than Hopper."""
    _require(weights, f"{_COMPRESSED} nvfp4", "symmetric", True)
    _require(weights, f"{_COMPRESSED} nvfp4", "group_size", NVFP4_BLOCK)
    return Quantization(format=WeightFormat.NVFP4, unused=("input_global_scale",), **modules)


def _modelopt(fields: Config) -> Quantization:
    """Formats of NVIDIA's Model Optimizer: FP8 per tensor with static activations, NVFP4, or by module."""
    patterns = fields.get("ignore") or fields.get("exclude_modules") or ()
    left_out = tuple(f"re:{fnmatch.translate(name)}" if "*" in name else name for name in patterns)
    if _choice(fields, "modelopt", "quant_algo", *_ALGORITHMS, _MIXED) != _MIXED:
        return _modelopt_format(fields, left_out=("lm_head", *left_out))
    modules: dict[str, list[str]] = {}
    for module, of_module in (fields.get("quantized_layers") or {}).items():
        _modelopt_format(of_module)
        modules.setdefault(of_module["quant_algo"], []).append(module)
    if not modules:
        raise UnsupportedModel(
            f"modelopt with quant_algo={_MIXED!r} has no quantized_layers; use one with them"
        )
    return _of_all(
        [
            _modelopt_format({"quant_algo": algorithm}, targets=tuple(named), left_out=left_out)
            for algorithm, named in sorted(modules.items(), reverse=True)
        ]
    )


def _modelopt_format(fields: Config, **modules: Any) -> Quantization:
    """`modules`: as arguments of `Quantization`."""
    if _choice(fields, "modelopt", "quant_algo", *_ALGORITHMS) == "FP8":
        unused = _static_scales(True)
        return Quantization(format=WeightFormat.FP8_ROWS, per_tensor=True, unused=unused, **modules)
    if fields["quant_algo"] == "MXFP8":
        _require(fields, "modelopt", "group_size", MX_BLOCK)
        return Quantization(format=WeightFormat.MXFP8, **modules)
    _require(fields, "modelopt", "group_size", NVFP4_BLOCK)
    unused = ("input_scale",)
    return Quantization(format=WeightFormat.NVFP4, nvfp4=Nvfp4Names.MODELOPT, unused=unused, **modules)


def _awq(fields: Config) -> Quantization:
    _require(fields, "awq", "bits", 4)
    _require({"version": str(fields.get("version") or "gemm").lower()}, "awq", "version", "gemm")
    _require(fields, "awq", "zero_point", True)
    return Quantization(
        format=WeightFormat.INTEGERS,
        packing=Packing.AWQ,
        group=_group(fields),
        zero_points=True,
        left_out=(*(fields.get("modules_to_not_convert") or ()), "lm_head"),
    )


def _gptq(fields: Config) -> Quantization:
    """Zero points are stored less 1 in the first format of these checkpoints, as they are in the second."""
    _require(fields, "gptq", "bits", 4, 8)
    _require(fields, "gptq", "lm_head", False)
    _require(fields, "gptq", "checkpoint_format", "gptq", "gptq_v2")
    _require(fields, "gptq", "is_marlin_format", False)
    group = _group(fields)
    act_order = bool(fields.get("desc_act")) and group is not None
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
        left_out=(*(fields.get("modules_to_not_convert") or ()), *_skipped(fields), "lm_head"),
    )


def _auto_round(fields: Config) -> Quantization:
    """AutoRound's own configuration of weights that it packs as GPTQ or AWQ do."""
    packing = _choice(fields, "auto-round", "packing_format", *_AUTO_ROUND)
    _require(fields, "auto-round", "data_type", "int")
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
    _require(fields, "mxfp8", "fmt", "e4m3", "float8_e4m3fn")
    _require(fields, "mxfp8", "weight_block_size", [1, MX_BLOCK])
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
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "gguf": _gguf,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
    "mxfp8": _mxfp8,
}


def _require(fields: Config, method: str, field: str, *values: object) -> None:
    """Raises UnsupportedModel unless `field` has one of `values`; null is what the field is by default."""
    found = fields.get(field)
    if found is not None and found not in values:
        raise _refusal(method, field, found, [value for value in values if value is not None])


def _choice(fields: Config, method: str, field: str, *values: str) -> str:
    """The value of a field that has no default. Raises UnsupportedModel unless it is one of `values`."""
    found = fields.get(field)
    if found not in values:
        raise _refusal(method, field, found, values)
    return str(found)


def _refusal(method: str, field: str, found: object, known: Iterable[object]) -> UnsupportedModel:
    use = " or ".join(map(repr, known))
    return UnsupportedModel(f"{method} with {field}={found!r} is not supported; use a checkpoint with {use}")
