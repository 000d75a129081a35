"""Weights in 4-bit floats (e2m1) with a scale per block of input features: MXFP4 of the OCP, and NVFP4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from engine.layers.formats.fp8 import FP8, has_kernels
from engine.layers.formats.quantized import QuantizedWeight
from engine.layers.linear.codes import Codes
from engine.layers.linear.linear_layer import GroupedProduct, LinearMethod, Slot
from engine.model_config.quantization import MXFP4_BLOCK, NVFP4_BLOCK, Nvfp4Names

_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Of the codes 0 to 15."""
_EXPONENT_BIAS: Final = 127


def _codes(blocks: Tensor) -> Tensor:
    """[..., n] uint8, two codes in each, the first in the low bits -> [..., 2 n] uint8, 0 to 15."""
    return torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)


def _scaled(codes: Tensor, scale: Tensor) -> Tensor:
    """The values [..., out, in] of `codes`, times the `scale` [..., out, blocks] of their blocks."""
    values = torch.tensor(_VALUES, device=codes.device)[codes.int()]
    return (values.view(*scale.shape, -1) * scale.unsqueeze(-1)).flatten(-2)


@dataclass(frozen=True, slots=True)
class Mxfp4(QuantizedWeight):
    """As gpt-oss stores its experts: `blocks` [out, in / 32, 16], two values in a byte, and `scales`."""

    NAME: ClassVar[str] = "mxfp4"

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        blocks = -(-in_features // MXFP4_BLOCK)
        layer.blocks = _parameter(*stack, out_features, blocks * MXFP4_BLOCK // 2)
        layer.scales = _parameter(*stack, out_features, blocks)

    def slots(self, layer: nn.Module) -> list[Slot]:
        return [
            Slot("blocks", layer.get_parameter("blocks"), (1, 2)),
            Slot("scales", layer.get_parameter("scales"), (1, MXFP4_BLOCK)),
        ]

    def codes(self, stored: Mapping[str, Tensor]) -> Tensor:
        """uint8 [..., out, in], 0 to 15."""
        return _codes(stored["blocks"])

    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        return _scaled(self.codes(stored), self._scale(stored)).to(self.dtype)

    def coded(self, stored: Mapping[str, Tensor]) -> Codes:
        return Codes(self.codes(stored), self._scale(stored), None, _VALUES)

    def _scale(self, stored: Mapping[str, Tensor]) -> Tensor:
        exponents = stored["scales"].int() - _EXPONENT_BIAS
        return torch.ldexp(torch.ones(exponents.shape, device=exponents.device), exponents)

    def on_device(self, stored: Mapping[str, Tensor]) -> LinearMethod | None:
        if not self._has_kernel(stored):
            return None
        from engine.layers.formats.fp4_gpu import Fp4OnGpu, packed

        return Fp4OnGpu(packed(self.codes(stored), stored["scales"]))

    def grouped_on_device(self, stored: Mapping[str, Tensor]) -> GroupedProduct | None:
        if not self._has_kernel(stored):
            return None
        from engine.layers.formats.fp4_gpu import GroupedFp4, packed

        return GroupedFp4(packed(self.codes(stored), stored["scales"]))

    def _has_kernel(self, stored: Mapping[str, Tensor]) -> bool:
        return stored["blocks"].is_cuda and self.dtype == torch.bfloat16


@dataclass(frozen=True, slots=True)
class Nvfp4(QuantizedWeight):
    """`blocks` [out, in / 2], two values in a byte, times `scales` (e4m3) and a factor of the projection."""

    NAME: ClassVar[str] = "nvfp4"
    names: Nvfp4Names

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        layer.blocks = _parameter(*stack, out_features, -(-in_features // 2))
        layer.scales = _parameter(*stack, out_features, -(-in_features // NVFP4_BLOCK), dtype=FP8)
        layer.factor = _parameter(*stack, out_features, dtype=torch.float32)

    def slots(self, layer: nn.Module) -> list[Slot]:
        blocks, scales, factor = self.names.value
        return [
            Slot(blocks, layer.get_parameter("blocks"), (1, 2)),
            Slot(scales, layer.get_parameter("scales"), (1, NVFP4_BLOCK)),
            Slot(factor, layer.get_parameter("factor"), single=True),
        ]

    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        return _scaled(_codes(stored["blocks"]), self._scale(stored)).to(self.dtype)

    def coded(self, stored: Mapping[str, Tensor]) -> Codes:
        return Codes(_codes(stored["blocks"]), self._scale(stored), None, _VALUES)

    def _scale(self, stored: Mapping[str, Tensor]) -> Tensor:
        return stored["scales"].float() * self._factor(stored).unsqueeze(-1)

    def _factor(self, stored: Mapping[str, Tensor]) -> Tensor:
        return 1 / stored["factor"] if self.names.divided else stored["factor"]

    def on_device(self, stored: Mapping[str, Tensor]) -> LinearMethod | None:
        if not self._has_kernel(stored):
            return None
        from engine.layers.formats.fp4_gpu import Fp4OnGpu, packed

        return Fp4OnGpu(packed(_codes(stored["blocks"]), stored["scales"], self._factor(stored)))

    def grouped_on_device(self, stored: Mapping[str, Tensor]) -> GroupedProduct | None:
        if not self._has_kernel(stored):
            return None
        from engine.layers.formats.fp4_gpu import GroupedFp4, packed

        return GroupedFp4(packed(_codes(stored["blocks"]), stored["scales"], self._factor(stored)))

    def _has_kernel(self, stored: Mapping[str, Tensor]) -> bool:
        return has_kernels(stored["scales"]) and self.dtype == torch.bfloat16


def _parameter(*shape: int, dtype: torch.dtype = torch.uint8) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
