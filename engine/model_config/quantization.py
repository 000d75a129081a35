"""Formats of quantized weights, read from `quantization_config` of config.json. Does not import torch."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from engine.model_config.errors import UnsupportedModel

FP8_BLOCK: Final = 128
"""Rows and columns of a block that shares a scale."""

MXFP4_BLOCK: Final = 32
"""Input features that share an exponent."""

NVFP4_BLOCK: Final = 16
"""Input features that share a scale."""

Config = Mapping[str, Any]


class WeightFormat(Enum):
    """How the weights of linear layers are stored and multiplied."""

    FP8_ROWS = "fp8"
    """8-bit floats with a scale per output feature; activations are quantized token by token."""
    FP8_BLOCKS = "fp8 in blocks"
    """8-bit floats with a scale per block; activations are quantized in groups of `FP8_BLOCK` features."""
    INTEGERS = "integers"
    """4- or 8-bit integers with a scale per group of input features; activations are not quantized."""
    MXFP4 = "mxfp4"
    """4-bit floats (e2m1) with an exponent (e8m0) per 32 input features; activations are not quantized."""
    NVFP4 = "nvfp4"
    """4-bit floats (e2m1) with a scale (e4m3) per 16 input features; activations are not quantized."""
    GGUF = "gguf"
    """Integers of up to 8 bits with a scale and an offset per group; activations are not quantized."""


class Packing(Enum):
    """How a checkpoint packs integers in words of 32 bits."""

    AWQ = "awq"
    GPTQ = "gptq"
    COMPRESSED = "compressed-tensors"
    NONE = "signed integers of 8 bits, one after the other"


class Nvfp4Names(Enum):
    """Names of a module's values, of their scales, and of the factor of all scales."""

    COMPRESSED = ("weight_packed", "weight_scale", "weight_global_scale")
    MODELOPT = ("weight", "weight_scale", "weight_scale_2")

    @property
    def divided(self) -> bool:
        """Whether scales are divided by the factor."""
        return self is Nvfp4Names.COMPRESSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """One format for all linear layers of a model, except those that are left out, embeddings and head."""

    format: WeightFormat
    scale: str = "weight_scale"
    """Name of the scales' tensor in a checkpoint's module."""
    per_tensor: bool = False
    """Whether the checkpoint has one scale per projection in place of one per output feature."""
    online: bool = False
    """Whether the checkpoint is not quantized: weights are quantized as they are loaded."""
    packing: Packing = Packing.COMPRESSED
    """Of integers; this and what follows are theirs alone."""
    bits: int = 4
    act_order: bool = False
    """Whether the checkpoint says which group each input feature belongs to."""
    group: int | None = None
    """Input features that share a scale; None: all."""
    zero_points: bool = False
    """GGUF: whether there are offsets."""
    zero_offset: int = 0
    """Added to the zero points that are stored."""
    nvfp4: Nvfp4Names = Nvfp4Names.COMPRESSED
    unused: tuple[str, ...] = ()
    """Names of tensors that hold nothing further."""
    left_out: tuple[str, ...] = ()
    """Modules that are not quantized: names, or regular expressions behind "re:"."""
    experts_only: bool = False
    """Whether all layers but the routed experts' are left out."""

    @property
    def bytes_per_weight(self) -> float:
        match self.format:
            case WeightFormat.INTEGERS:
                # A scale in 16 bits, as most checkpoints have it, and a zero point in 8.
                return self.bits / 8 + (0.0 if self.group is None else 3 / self.group)
            case WeightFormat.MXFP4:
                return 0.5 + 1 / MXFP4_BLOCK
            case WeightFormat.NVFP4:
                return 0.5 + 1 / NVFP4_BLOCK
            case WeightFormat.FP8_ROWS | WeightFormat.FP8_BLOCKS:
                return 1.0
            case WeightFormat.GGUF:
                # The scale and the offset in 32 bits. Of 4-bit integers half of the first byte.
                return 1.0 + (8 if self.zero_points else 4) / (self.group or math.inf)

    @property
    def stays_on_gpus(self) -> bool:
        """Whether GPUs multiply weights as they are stored; if not, weights are dequantized at load."""
        if self.format is WeightFormat.INTEGERS:
            return self.bits == 4
        return self.format is not WeightFormat.GGUF

    def covers(self, module: str) -> bool:
        """Whether the checkpoint's linear layer `module` is quantized."""
        if self.experts_only:
            return ".experts." in f".{module}."
        return not any(_names(pattern, module) for pattern in self.left_out)

    @classmethod
    def from_config(cls, config: Config) -> Quantization | None:
        """Of a parsed config.json; None if its weights are not quantized. Raises UnsupportedModel."""
        fields: Config = config.get("quantization_config") or config.get("compression_config") or {}
        if not fields:
            return None
        method = fields.get("quant_method", "an unnamed method")
        reader = _READERS.get(method)
        if reader is None:
            known = ", ".join(sorted(_READERS))
            raise UnsupportedModel(f"{method} weights are not supported; Baton reads {known}")
        return reader(fields)


ONLINE_FP8: Final = Quantization(format=WeightFormat.FP8_ROWS, online=True)


def _fp8(fields: Config) -> Quantization:
    """Of transformers, as in Qwen3-FP8 and DeepSeek-V3; also AutoFP8's, which has no blocks."""
    _require(fields, "fp8", "fmt", "e4m3")
    left_out = (*(fields.get("modules_to_not_convert") or fields.get("ignored_layers") or ()), "lm_head")
    blocks = fields.get("weight_block_size")
    if blocks is None:
        unused = _static_scales(fields.get("activation_scheme") == "static")
        return Quantization(format=WeightFormat.FP8_ROWS, per_tensor=True, unused=unused, left_out=left_out)
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
    """Of llm-compressor; None: it has calibrated the scales of KV alone."""
    scheme = fields.get("kv_cache_scheme") or {}
    for field, value in (("num_bits", 8), ("type", "float"), ("strategy", "tensor"), ("dynamic", False)):
        _require(scheme, "compressed-tensors with kv_cache_scheme", field, value)
    groups = list(fields.get("config_groups", {}).values())
    if scheme and not groups:
        return None
    if len(groups) != 1 or list(groups[0].get("targets", [])) != ["Linear"]:
        raise UnsupportedModel("compressed-tensors weights in more than one format are not supported")
    for feature in ("sparsity_config", "transform_config"):
        if fields.get(feature):
            raise UnsupportedModel(f"compressed-tensors with {feature} is not supported")
    return _compressed_weights(groups[0], fields)


def _compressed_weights(group: Config, fields: Config) -> Quantization:
    weights, activations = group["weights"], group.get("input_activations")
    left_out = tuple(fields.get("ignore") or ())
    kind, packing = (weights.get("num_bits"), weights.get("type")), fields.get("format")
    if kind == (8, "float") and activations is not None:
        return _compressed_fp8(weights, activations, left_out)
    if kind in ((4, "int"), (8, "int")) and activations is None and packing == "pack-quantized":
        return _compressed_integers(weights, left_out)
    if kind == (4, "float") and packing == "nvfp4-pack-quantized":
        return _compressed_nvfp4(weights, left_out)
    if kind == (8, "int") and packing == "int-quantized":
        return _compressed_int8(weights, activations or {}, left_out)
    what = f"{kind[0]}-bit {kind[1]} weights" + (" with quantized activations" if activations else "")
    raise UnsupportedModel(f"compressed-tensors with {what} is not supported")


def _compressed_fp8(weights: Config, activations: Config, left_out: tuple[str, ...]) -> Quantization:
    _require(weights, "compressed-tensors", "symmetric", True)
    unused = _static_scales(not activations.get("dynamic"))
    match weights.get("strategy"):
        case "tensor" | "channel" as strategy:
            _require_rows(activations)
            return Quantization(
                format=WeightFormat.FP8_ROWS,
                per_tensor=strategy == "tensor",
                unused=unused,
                left_out=left_out,
            )
        case "block":
            _require(weights, "compressed-tensors", "block_structure", [FP8_BLOCK, FP8_BLOCK])
            _require(activations, "compressed-tensors with input_activations", "dynamic", True)
            _require(activations, "compressed-tensors with input_activations", "group_size", FP8_BLOCK)
            return Quantization(format=WeightFormat.FP8_BLOCKS, left_out=left_out)
        case strategy:
            raise UnsupportedModel(f"compressed-tensors fp8 with strategy {strategy!r} is not supported")


def _require_rows(activations: Config) -> None:
    """Raises UnsupportedModel unless a scale of activations is of a token, or of all tokens."""
    if activations.get("strategy") not in ("token", "tensor"):
        found = activations.get("strategy")
        raise UnsupportedModel(
            f"compressed-tensors with input_activations of strategy {found!r} is not supported"
        )


def _compressed_integers(weights: Config, left_out: tuple[str, ...]) -> Quantization:
    if weights.get("actorder") not in (None, False, "weight", "static", "group"):
        raise UnsupportedModel(f"compressed-tensors with actorder={weights['actorder']!r} is not supported")
    match weights.get("strategy"):
        case "group":
            group: int | None = int(weights["group_size"])
        case "channel":
            group = None
        case strategy:
            raise UnsupportedModel(f"compressed-tensors int4 with strategy {strategy!r} is not supported")
    return Quantization(
        format=WeightFormat.INTEGERS,
        packing=Packing.COMPRESSED,
        bits=int(weights["num_bits"]),
        act_order=weights.get("actorder") == "group" and group is not None,
        group=group,
        zero_points=not weights.get("symmetric", True),
        unused=("weight_shape",),
        left_out=left_out,
    )


def _compressed_int8(weights: Config, activations: Config, left_out: tuple[str, ...]) -> Quantization:
    """Activations keep their 16 or 32 bits, so they are more exact than the checkpoint asks for."""
    _require(weights, "compressed-tensors", "symmetric", True)
    _require(weights, "compressed-tensors int8", "strategy", "channel")
    return Quantization(
        format=WeightFormat.INTEGERS,
        packing=Packing.NONE,
        bits=8,
        unused=_static_scales(activations.get("dynamic") is False),
        left_out=left_out,
    )


def _compressed_nvfp4(weights: Config, left_out: tuple[str, ...]) -> Quantization:
    """Activations keep their 16 or 32 bits: products of 4-bit floats need a later GPU than Hopper."""
    _require(weights, "compressed-tensors nvfp4", "symmetric", True)
    _require(weights, "compressed-tensors nvfp4", "group_size", NVFP4_BLOCK)
    return Quantization(format=WeightFormat.NVFP4, unused=("input_global_scale",), left_out=left_out)


def _modelopt(fields: Config) -> Quantization:
    """Of NVIDIA's Model Optimizer: FP8 per tensor with static activations, or NVFP4."""
    patterns = fields.get("ignore") or fields.get("exclude_modules") or ()
    left_out = ("lm_head", *(f"re:{fnmatch.translate(name)}" if "*" in name else name for name in patterns))
    match fields.get("quant_algo"):
        case "FP8":
            return Quantization(
                format=WeightFormat.FP8_ROWS, per_tensor=True, unused=_static_scales(True), left_out=left_out
            )
        case "NVFP4":
            _require(fields, "modelopt", "group_size", NVFP4_BLOCK)
            return Quantization(
                format=WeightFormat.NVFP4,
                nvfp4=Nvfp4Names.MODELOPT,
                unused=("input_scale",),
                left_out=left_out,
            )
        case algorithm:
            raise UnsupportedModel(
                f"modelopt with quant_algo={algorithm!r} is not supported; use FP8 or NVFP4"
            )


def _awq(fields: Config) -> Quantization:
    _require(fields, "awq", "bits", 4)
    _require(fields, "awq", "version", "gemm")
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
    bits = int(fields.get("bits", 4))
    if bits not in (4, 8):
        raise UnsupportedModel(f"gptq with bits={bits} is not supported; it must be 4 or 8")
    _require(fields, "gptq", "lm_head", False)
    stored = fields.get("checkpoint_format", "gptq")
    if stored not in ("gptq", "gptq_v2"):
        raise UnsupportedModel(f"gptq with checkpoint_format={stored!r} is not supported")
    if fields.get("dynamic"):
        raise UnsupportedModel("gptq with dynamic settings per module is not supported")
    group = _group(fields)
    act_order = bool(fields.get("desc_act")) and group is not None
    return Quantization(
        format=WeightFormat.INTEGERS,
        packing=Packing.GPTQ,
        bits=bits,
        act_order=act_order,
        group=group,
        zero_points=True,
        zero_offset=1 if stored == "gptq" else 0,
        unused=() if act_order else ("g_idx",),
        left_out=(*(fields.get("modules_to_not_convert") or ()), "lm_head"),
    )


def _mxfp4(fields: Config) -> Quantization:
    """Of gpt-oss, whose experts are the only ones that are quantized so."""
    return Quantization(format=WeightFormat.MXFP4, group=MXFP4_BLOCK, experts_only=True)


def _gguf(fields: Config) -> Quantization:
    """Of our own conversion of GGUF files."""
    return Quantization(
        format=WeightFormat.GGUF,
        group=int(fields["group_size"]),
        zero_points=bool(fields["offsets"]),
        left_out=("lm_head",),
    )


def _group(fields: Config) -> int | None:
    size = int(fields.get("group_size", 128))
    return None if size == -1 else size


_READERS: Final = {
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "gguf": _gguf,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
}


def _require(fields: Config, method: str, field: str, value: object) -> None:
    found = fields.get(field, value)
    if found != value:
        raise UnsupportedModel(f"{method} with {field}={found!r} is not supported; it must be {value!r}")


def _names(pattern: str, module: str) -> bool:
    """Whether `pattern` names `module`, one that contains it, or the end of its path."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return f".{pattern}." in f".{module}."
