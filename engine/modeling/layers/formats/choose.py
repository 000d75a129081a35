"""The linear method of each format of weights."""

from __future__ import annotations

from functools import partial

import torch

from engine.model_config.quantization import Quantization, WeightFormat
from engine.modeling.layers.formats.act_order import ActOrder
from engine.modeling.layers.formats.fp4 import Mxfp4, Nvfp4
from engine.modeling.layers.formats.fp8 import Fp8Blocks, Fp8Rows, Mxfp8
from engine.modeling.layers.formats.gguf import GgufCodes
from engine.modeling.layers.formats.integers import IntegerGroups
from engine.modeling.layers.linear.linear_layer import PLAIN, LinearMethod


def method_of(quantization: Quantization, shares: int = 1, *, rearranged: bool = False) -> LinearMethod:
    """For layers whose activations have torch's current default dtype.

    `shares`: ranks that a layer's input features are divided among. `rearranged`: whether its output features
    are in another order than in the checkpoint.
    """
    dtype = torch.get_default_dtype()
    match quantization.format:
        case WeightFormat.FP8_ROWS:
            return Fp8Rows(
                dtype,
                per_tensor=quantization.per_tensor,
                online=quantization.online,
                weights_only=quantization.weights_only,
            )
        case WeightFormat.FP8_BLOCKS:
            return Fp8Blocks(dtype, scale=quantization.scale, rearranged=rearranged)
        case WeightFormat.INTEGERS:
            method = partial(ActOrder, shares=shares) if quantization.act_order else IntegerGroups
            return method(
                dtype,
                packing=quantization.packing,
                bits=quantization.bits,
                group=quantization.group,
                zero_points=quantization.zero_points,
                zero_offset=quantization.zero_offset,
            )
        case WeightFormat.MXFP4:
            return Mxfp4(dtype, quantization.mxfp4)
        case WeightFormat.MXFP8:
            return Mxfp8(dtype)
        case WeightFormat.NVFP4:
            return Nvfp4(dtype, quantization.nvfp4)
        case WeightFormat.BITSANDBYTES:
            return PLAIN
        case WeightFormat.GGUF:
            assert quantization.group is not None
            return GgufCodes(dtype, group=quantization.group, offsets=quantization.zero_points)
