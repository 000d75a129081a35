"""Reads the `quantization_config` of llm-compressor, whose formats are those of compressed-tensors."""

from __future__ import annotations

from typing import Final

from engine.model_config.errors import UnsupportedModel
from engine.model_config.formats.checks import Config, choice, of_all, require, static_scales
from engine.model_config.quantization import (
    FP8_BLOCK,
    MX_BLOCK,
    NVFP4_BLOCK,
    Mxfp4Names,
    Packing,
    Quantization,
    WeightFormat,
)

_COMPRESSED: Final = "compressed-tensors"


def compressed_tensors(fields: Config) -> Quantization | None:
    """Formats of llm-compressor; None: it has calibrated the scales of KV alone."""
    scheme = fields.get("kv_cache_scheme") or {}
    for field, value in (("num_bits", 8), ("type", "float"), ("strategy", "tensor"), ("dynamic", False)):
        require(scheme, f"{_COMPRESSED} with kv_cache_scheme", field, value)
    # "dense" is how llm-compressor described zeros in weights that it stored as any others.
    require(fields.get("sparsity_config") or {}, f"{_COMPRESSED} with sparsity_config", "format", "dense")
    if fields.get("transform_config"):
        raise UnsupportedModel(f"{_COMPRESSED} with a transform_config is not supported; use one without")
    groups = fields.get("config_groups") or {}
    if scheme and not groups:
        return None
    if not groups:
        raise UnsupportedModel(
            f"{_COMPRESSED} with config_groups {{}} is not supported; use one with a group"
        )
    return of_all([_compressed_group(group, fields) for group in groups.values()])


def _compressed_group(group: Config, fields: Config) -> Quantization:
    targets = tuple(group.get("targets") or ())
    if not targets:
        raise UnsupportedModel(f"{_COMPRESSED} with targets={targets!r} is not supported; use ['Linear']")
    return _compressed_weights(
        group,
        group.get("format") or fields.get("format"),
        {"targets": () if "Linear" in targets else targets, "left_out": tuple(fields.get("ignore") or ())},
    )


def _compressed_weights(group: Config, packing: str | None, modules: Config) -> Quantization:
    """`modules`: those that are quantized, as arguments of `Quantization`."""
    weights, activations = group["weights"], group.get("input_activations")
    kind = (weights.get("num_bits"), weights.get("type"))
    if kind == (8, "float") and packing == "mxfp8-quantized":
        require(weights, f"{_COMPRESSED} mxfp8", "group_size", MX_BLOCK)
        return Quantization(format=WeightFormat.MXFP8, **modules)
    if kind == (8, "float"):
        return _compressed_fp8(weights, activations, modules)
    if kind in ((4, "int"), (8, "int")) and activations is None and packing == "pack-quantized":
        return _compressed_integers(weights, modules)
    if kind == (4, "float") and packing == "mxfp4-pack-quantized":
        require(weights, f"{_COMPRESSED} mxfp4", "group_size", MX_BLOCK)
        names = Mxfp4Names.COMPRESSED
        return Quantization(format=WeightFormat.MXFP4, group=MX_BLOCK, mxfp4=names, **modules)
    if kind == (4, "float") and packing == "nvfp4-pack-quantized":
        return _compressed_nvfp4(weights, modules)
    if kind == (8, "int") and packing == "int-quantized":
        return _compressed_int8(weights, activations or {}, modules)
    quantized = "quantized" if activations else "unquantized"
    raise UnsupportedModel(
        f"{_COMPRESSED} with format={packing!r}, {kind[0]}-bit {kind[1]} weights and {quantized} activations"
        " is not supported; use a checkpoint of the scheme FP8, FP8_DYNAMIC, FP8_BLOCK, W4A16, W8A16,"
        " W8A8, MXFP4 or NVFP4"
    )


def _compressed_fp8(weights: Config, activations: Config | None, modules: Config) -> Quantization:
    require(weights, _COMPRESSED, "symmetric", True)
    if activations is None:
        strategy = choice(weights, f"{_COMPRESSED} fp8 of weights alone", "strategy", "tensor", "channel")
        rows = WeightFormat.FP8_ROWS
        return Quantization(format=rows, per_tensor=strategy == "tensor", weights_only=True, **modules)
    strategy = choice(weights, f"{_COMPRESSED} fp8", "strategy", "tensor", "channel", "block")
    of_activations = f"{_COMPRESSED} with input_activations"
    if strategy == "block":
        require(weights, _COMPRESSED, "block_structure", [FP8_BLOCK, FP8_BLOCK])
        require(activations, of_activations, "dynamic", True)
        require(activations, of_activations, "group_size", FP8_BLOCK)
        return Quantization(format=WeightFormat.FP8_BLOCKS, **modules)
    # A scale of activations is of a token, or of all tokens.
    choice(activations, of_activations, "strategy", "token", "tensor")
    return Quantization(
        format=WeightFormat.FP8_ROWS,
        per_tensor=strategy == "tensor",
        unused=static_scales(not activations.get("dynamic")),
        **modules,
    )


def _compressed_integers(weights: Config, modules: Config) -> Quantization:
    require(weights, _COMPRESSED, "actorder", None, False, "weight", "static", "group")
    strategy = choice(weights, f"{_COMPRESSED} integers", "strategy", "group", "channel")
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
    require(weights, _COMPRESSED, "symmetric", True)
    choice(weights, f"{_COMPRESSED} int8", "strategy", "channel")
    return Quantization(
        format=WeightFormat.INTEGERS,
        packing=Packing.NONE,
        bits=8,
        unused=static_scales(activations.get("dynamic") is False),
        **modules,
    )


def _compressed_nvfp4(weights: Config, modules: Config) -> Quantization:
    """Activations keep their 16 or 32 bits: products of 4-bit floats need a later GPU than Hopper."""
    require(weights, f"{_COMPRESSED} nvfp4", "symmetric", True)
    require(weights, f"{_COMPRESSED} nvfp4", "group_size", NVFP4_BLOCK)
    return Quantization(format=WeightFormat.NVFP4, unused=("input_global_scale",), **modules)
