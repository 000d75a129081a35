"""Formats of quantized weights, read from `quantization_config` of config.json. Does not import torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from engine.model_config.errors import UnsupportedModel

__all__ = ["FP8_BLOCK", "MXFP4_BLOCK", "ONLINE_FP8", "Int4Packing", "Quantization", "WeightFormat"]

FP8_BLOCK: Final = 128
"""Rows and columns of a block that shares a scale."""

MXFP4_BLOCK: Final = 32
"""Input features that share an exponent."""

Config = Mapping[str, Any]


class WeightFormat(Enum):
    """How the weights of linear layers are stored and multiplied."""

    FP8_ROWS = "fp8"
    """8-bit floats with a scale per output feature; activations are quantized token by token."""
    FP8_BLOCKS = "fp8 in blocks"
    """8-bit floats with a scale per block; activations are quantized in groups of `FP8_BLOCK` features."""
    INT4 = "4-bit"
    """4-bit integers with a scale per group of input features; activations are not quantized."""
    MXFP4 = "mxfp4"
    """4-bit floats (e2m1) with an exponent (e8m0) per 32 input features; activations are not quantized."""
    GGUF = "gguf"
    """Integers of up to 8 bits with a scale and an offset per group; activations are not quantized."""


class Int4Packing(Enum):
    """How a checkpoint packs eight 4-bit values in a word."""

    AWQ = "awq"
    GPTQ = "gptq"
    COMPRESSED = "compressed-tensors"


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
    packing: Int4Packing = Int4Packing.COMPRESSED
    """Of 4-bit values; this and what follows are theirs alone."""
    group: int | None = None
    """Input features that share a scale; None: all."""
    zero_points: bool = False
    """GGUF: whether there are offsets."""
    zero_offset: int = 0
    """Added to the zero points that are stored."""
    unused: tuple[str, ...] = ()
    """Names of tensors that hold nothing further."""
    left_out: tuple[str, ...] = ()
    """Modules that are not quantized: names, or regular expressions behind "re:"."""
    experts_only: bool = False
    """Whether all layers but the routed experts' are left out."""

    @property
    def bytes_per_weight(self) -> float:
        match self.format:
            case WeightFormat.INT4:
                # A scale in 16 bits, as most checkpoints have it, and a zero point in 8.
                return 0.5 + (0.0 if self.group is None else 3 / self.group)
            case WeightFormat.MXFP4:
                return 0.5 + 1 / MXFP4_BLOCK
            case WeightFormat.FP8_ROWS | WeightFormat.FP8_BLOCKS:
                return 1.0
            case WeightFormat.GGUF:
                # The scale and the offset in 32 bits. Of 4-bit integers half of the first byte.
                return 1.0 + (8 if self.zero_points else 4) / (self.group or math.inf)

    @property
    def arithmetic(self) -> float:
        """Rate of products relative to that of 16-bit weights, where a device computes in the format."""
        return 2.0 if self.format in (WeightFormat.FP8_ROWS, WeightFormat.FP8_BLOCKS) else 1.0

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
    _require(fields, "fp8", "activation_scheme", "dynamic")
    left_out = (*(fields.get("modules_to_not_convert") or fields.get("ignored_layers") or ()), "lm_head")
    blocks = fields.get("weight_block_size")
    if blocks is None:
        return Quantization(format=WeightFormat.FP8_ROWS, per_tensor=True, left_out=left_out)
    _require(fields, "fp8", "weight_block_size", [FP8_BLOCK, FP8_BLOCK])
    return Quantization(format=WeightFormat.FP8_BLOCKS, scale="weight_scale_inv", left_out=left_out)


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
    kind = weights.get("num_bits"), weights.get("type")
    if kind == (8, "float") and activations is not None:
        return _compressed_fp8(weights, activations, left_out)
    if kind == (4, "int") and activations is None and fields.get("format") == "pack-quantized":
        return _compressed_int4(weights, left_out)
    what = f"{kind[0]}-bit {kind[1]} weights" + (" with quantized activations" if activations else "")
    raise UnsupportedModel(f"compressed-tensors with {what} is not supported")


def _compressed_fp8(weights: Config, activations: Config, left_out: tuple[str, ...]) -> Quantization:
    _require(weights, "compressed-tensors", "symmetric", True)
    _require(activations, "compressed-tensors with input_activations", "dynamic", True)
    match weights.get("strategy"):
        case "tensor" | "channel" as strategy:
            _require(activations, "compressed-tensors with input_activations", "strategy", "token")
            per_tensor = strategy == "tensor"
            return Quantization(format=WeightFormat.FP8_ROWS, per_tensor=per_tensor, left_out=left_out)
        case "block":
            _require(weights, "compressed-tensors", "block_structure", [FP8_BLOCK, FP8_BLOCK])
            _require(activations, "compressed-tensors with input_activations", "group_size", FP8_BLOCK)
            return Quantization(format=WeightFormat.FP8_BLOCKS, left_out=left_out)
        case strategy:
            raise UnsupportedModel(f"compressed-tensors fp8 with strategy {strategy!r} is not supported")


def _compressed_int4(weights: Config, left_out: tuple[str, ...]) -> Quantization:
    if weights.get("actorder") not in (None, False, "weight", "static"):
        raise UnsupportedModel(f"compressed-tensors with actorder={weights['actorder']!r} is not supported")
    match weights.get("strategy"):
        case "group":
            group: int | None = int(weights["group_size"])
        case "channel":
            group = None
        case strategy:
            raise UnsupportedModel(f"compressed-tensors int4 with strategy {strategy!r} is not supported")
    return Quantization(
        format=WeightFormat.INT4,
        packing=Int4Packing.COMPRESSED,
        group=group,
        zero_points=not weights.get("symmetric", True),
        unused=("weight_shape",),
        left_out=left_out,
    )


def _awq(fields: Config) -> Quantization:
    _require(fields, "awq", "bits", 4)
    _require(fields, "awq", "version", "gemm")
    _require(fields, "awq", "zero_point", True)
    return Quantization(
        format=WeightFormat.INT4,
        packing=Int4Packing.AWQ,
        group=_group(fields),
        zero_points=True,
        left_out=(*(fields.get("modules_to_not_convert") or ()), "lm_head"),
    )


def _gptq(fields: Config) -> Quantization:
    """Zero points are stored less 1 in the first format of these checkpoints, as they are in the second."""
    _require(fields, "gptq", "bits", 4)
    _require(fields, "gptq", "desc_act", False)
    _require(fields, "gptq", "lm_head", False)
    stored = fields.get("checkpoint_format", "gptq")
    if stored not in ("gptq", "gptq_v2"):
        raise UnsupportedModel(f"gptq with checkpoint_format={stored!r} is not supported")
    if fields.get("dynamic"):
        raise UnsupportedModel("gptq with dynamic settings per module is not supported")
    return Quantization(
        format=WeightFormat.INT4,
        packing=Int4Packing.GPTQ,
        group=_group(fields),
        zero_points=True,
        zero_offset=1 if stored == "gptq" else 0,
        unused=("g_idx",),
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
