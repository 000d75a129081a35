"""The linear method of each format of weights."""

from __future__ import annotations

import torch

from engine.layers.formats.fp8 import Fp8Blocks, Fp8Rows
from engine.layers.formats.gguf import GgufCodes
from engine.layers.formats.int4 import Int4Groups
from engine.layers.formats.mxfp4 import Mxfp4
from engine.layers.linear.linear_layer import LinearMethod
from engine.model_config.quantization import Quantization, WeightFormat

__all__ = ["method_of"]


def method_of(quantization: Quantization) -> LinearMethod:
    """For layers whose activations have torch's current default dtype."""
    dtype = torch.get_default_dtype()
    match quantization.format:
        case WeightFormat.FP8_ROWS:
            return Fp8Rows(dtype, per_tensor=quantization.per_tensor, online=quantization.online)
        case WeightFormat.FP8_BLOCKS:
            return Fp8Blocks(dtype, scale=quantization.scale)
        case WeightFormat.INT4:
            return Int4Groups(
                dtype,
                packing=quantization.packing,
                group=quantization.group,
                zero_points=quantization.zero_points,
                zero_offset=quantization.zero_offset,
            )
        case WeightFormat.MXFP4:
            return Mxfp4(dtype)
        case WeightFormat.GGUF:
            assert quantization.group is not None
            return GgufCodes(dtype, group=quantization.group, offsets=quantization.zero_points)
