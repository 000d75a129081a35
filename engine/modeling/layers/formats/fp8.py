"""Weights in 8-bit floats (e4m3), with a scale per output feature or per block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from engine.model_config.quantization import FP8_BLOCK, MX_BLOCK
from engine.modeling.layers.formats.quantized import QuantizedWeight
from engine.modeling.layers.linear.linear_layer import GroupedProduct, LinearMethod, Slot, weight

FP8: Final = torch.float8_e4m3fn
EXPONENT_BIAS: Final = 127
_LARGEST: Final = torch.finfo(FP8).max


def row_scales(rows: Tensor) -> Tensor:
    """`rows` [..., n] -> [...] float32: what brings the largest value of each row to the largest of e4m3."""
    largest = rows.abs().amax(dim=-1).float()
    return largest.clamp_(min=1e-12) / _LARGEST


def _quantized(rows: Tensor) -> Tensor:
    return (rows.float() / row_scales(rows).unsqueeze(-1)).clamp_(-_LARGEST, _LARGEST).to(FP8)


def has_kernels(weight: Tensor) -> bool:
    """Whether the device of `weight` multiplies 8-bit floats."""
    return weight.is_cuda and torch.cuda.get_device_capability(weight.device) >= (8, 9)


@dataclass(frozen=True, slots=True)
class Fp8Rows(QuantizedWeight):
    """`weight` [out, in] times `weight_scale` [out]. Activations are quantized token by token."""

    NAME: ClassVar[str] = "fp8"
    per_tensor: bool = False
    """Whether the checkpoint has one scale for a whole projection."""
    online: bool = False
    """Whether the checkpoint's weight is not quantized yet."""
    weights_only: bool = False
    """Whether activations are not quantized."""

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        layer.weight = weight(*stack, out_features, in_features, dtype=FP8)
        layer.weight_scale = weight(*stack, out_features, dtype=torch.float32)

    def slots(self, layer: nn.Module) -> list[Slot]:
        weight, scale = layer.get_parameter("weight"), layer.get_parameter("weight_scale")
        if self.online:
            return [
                Slot("weight", weight, convert=_quantized),
                Slot("weight", scale.unsqueeze(-1), summary=True, convert=_scale_column),
            ]
        if self.per_tensor:
            return [Slot("weight", weight), Slot("weight_scale", scale, single=True)]
        return [Slot("weight", weight), Slot("weight_scale", scale.unsqueeze(-1), tile=(1, None))]

    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        return (stored["weight"].float() * stored["weight_scale"].unsqueeze(-1)).to(self.dtype)

    def on_device(self, stored: Mapping[str, Tensor]) -> LinearMethod | None:
        weight, scale = stored["weight"], stored["weight_scale"]
        if self.weights_only or not has_kernels(weight) or self.dtype == torch.float32:
            return None
        from engine.modeling.layers.formats.fp8_gpu import (
            Fp8RowsOnGpu,  # Triton ships only with torch's CUDA builds
        )

        return Fp8RowsOnGpu(weight, scale)

    def grouped_on_device(self, stored: Mapping[str, Tensor]) -> GroupedProduct | None:
        weight, scale = stored["weight"], stored["weight_scale"]
        if self.weights_only or not has_kernels(weight) or self.dtype == torch.float32:
            return None
        from engine.kernels.matmul.grouped_matmul import ProductScaling
        from engine.modeling.layers.formats.fp8_gpu import GroupedFp8

        return GroupedFp8(weight, scale, ProductScaling.ROWS)


@dataclass(frozen=True, slots=True)
class Mxfp8(QuantizedWeight):
    """`weight` [out, in] times 2 to the power of `weight_scale` - 127, for 32 input features each."""

    NAME: ClassVar[str] = "mxfp8"

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        groups = -(-in_features // MX_BLOCK)
        layer.weight = weight(*stack, out_features, in_features, dtype=FP8)
        layer.weight_scale = weight(*stack, out_features, groups, dtype=torch.uint8)

    def slots(self, layer: nn.Module) -> list[Slot]:
        scale = layer.get_parameter("weight_scale")
        return [
            Slot("weight", layer.get_parameter("weight")),
            Slot("weight_scale", scale, tile=(1, MX_BLOCK)),
        ]

    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        weight, exponents = stored["weight"], stored["weight_scale"].int() - EXPONENT_BIAS
        spread = torch.exp2(exponents.float()).repeat_interleave(MX_BLOCK, -1)
        return (weight.float() * spread[..., : weight.shape[-1]]).to(self.dtype)


def _scale_column(rows: Tensor) -> Tensor:
    return row_scales(rows).unsqueeze(-1)


@dataclass(frozen=True, slots=True)
class Fp8Blocks(QuantizedWeight):
    """`weight` [out, in] times a scale per block of 128 x 128. Activations are quantized in groups of 128."""

    NAME: ClassVar[str] = "block-fp8"
    scale: str = "weight_scale_inv"
    """The scales' name in the checkpoint."""
    rearranged: bool = False
    """Whether output features are in another order than in the checkpoint. Each has scales of its own then,
    and the weights are dequantized."""

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        blocks = -(-out_features // self._rows), -(-in_features // FP8_BLOCK)
        layer.weight = weight(*stack, out_features, in_features, dtype=FP8)
        layer.weight_scale = weight(*stack, *blocks, dtype=torch.float32)

    def slots(self, layer: nn.Module) -> list[Slot]:
        scale = layer.get_parameter("weight_scale")
        return [
            Slot("weight", layer.get_parameter("weight")),
            Slot(self.scale, scale, tile=(self._rows, FP8_BLOCK), rows=FP8_BLOCK // self._rows),
        ]

    @property
    def _rows(self) -> int:
        """Number of rows that share a scale."""
        return 1 if self.rearranged else FP8_BLOCK

    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        weight, scale = stored["weight"], stored["weight_scale"]
        rows, columns = weight.shape[-2:]
        spread = scale.repeat_interleave(self._rows, -2)[..., :rows, :]
        spread = spread.repeat_interleave(FP8_BLOCK, -1)[..., :columns]
        return (weight.float() * spread).to(self.dtype)

    def on_device(self, stored: Mapping[str, Tensor]) -> LinearMethod | None:
        weight, scale = stored["weight"], stored["weight_scale"]
        if self.rearranged or not has_kernels(weight) or self.dtype == torch.float32:
            return None
        from engine.modeling.layers.formats.fp8_gpu import Fp8BlocksOnGpu

        return Fp8BlocksOnGpu(weight, scale)

    def grouped_on_device(self, stored: Mapping[str, Tensor]) -> GroupedProduct | None:
        weight, scale = stored["weight"], stored["weight_scale"]
        if not has_kernels(weight) or self.dtype == torch.float32:
            return None
        from engine.kernels.matmul.grouped_matmul import ProductScaling
        from engine.modeling.layers.formats.fp8_gpu import GroupedFp8

        return GroupedFp8(weight, scale, ProductScaling.BLOCKS)
