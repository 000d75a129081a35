"""Weights in 4-bit floats (e2m1) with a scale per block of input features: MXFP4 of the OCP, and NVFP4."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from engine.model_config.quantization import MX_BLOCK, NVFP4_BLOCK, Mxfp4Names, Nvfp4Names
from engine.modeling.layers.formats.fp8 import EXPONENT_BIAS, FP8, has_kernels
from engine.modeling.layers.formats.quantized import QuantizedWeight
from engine.modeling.layers.linear.codes import Codes
from engine.modeling.layers.linear.linear_layer import GroupedProduct, LinearMethod, Slot, weight

_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the codes 0 to 15."""


@dataclass(frozen=True, slots=True)
class _Fp4(QuantizedWeight):
    """`blocks` with two values in a byte, and `scales`, of a block each."""

    @abstractmethod
    def _scale(self, stored: Mapping[str, Tensor]) -> Tensor:
        """Scales of blocks: float32 [..., out, blocks]."""

    def _factor(self, stored: Mapping[str, Tensor]) -> Tensor | None:
        """Factor of `scales`: float32 [..., out]; None: 1."""
        return None

    @abstractmethod
    def _has_kernel(self, stored: Mapping[str, Tensor]) -> bool: ...

    def _codes(self, stored: Mapping[str, Tensor]) -> Tensor:
        """uint8 [..., out, in], 0 to 15; the first of a byte is in its low bits."""
        blocks = stored["blocks"]
        return torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)

    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        codes, scale = self._codes(stored), self._scale(stored)
        values = torch.tensor(_VALUES, device=codes.device)[codes.int()]
        return (values.view(*scale.shape, -1) * scale.unsqueeze(-1)).flatten(-2).to(self.dtype)

    def coded(self, stored: Mapping[str, Tensor]) -> Codes:
        return Codes(self._codes(stored), self._scale(stored), None, _VALUES)

    def on_device(self, stored: Mapping[str, Tensor]) -> LinearMethod | None:
        if not self._has_kernel(stored):
            return None
        from engine.modeling.layers.formats.fp4_gpu import Fp4OnGpu, packed

        return Fp4OnGpu(packed(self._codes(stored), stored["scales"], self._factor(stored)))

    def grouped_on_device(self, stored: Mapping[str, Tensor]) -> GroupedProduct | None:
        if not self._has_kernel(stored):
            return None
        from engine.modeling.layers.formats.fp4_gpu import GroupedFp4, packed

        return GroupedFp4(packed(self._codes(stored), stored["scales"], self._factor(stored)))


@dataclass(frozen=True, slots=True)
class Mxfp4(_Fp4):
    """`blocks` [out, in / 2], two values in a byte, and `scales` [out, in / 32]. gpt-oss stores blocks of its
    experts as [out, in / 32, 16]."""

    NAME: ClassVar[str] = "mxfp4"
    names: Mxfp4Names = Mxfp4Names.GPT_OSS

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        blocks = -(-in_features // MX_BLOCK)
        layer.blocks = weight(*stack, out_features, blocks * MX_BLOCK // 2, dtype=torch.uint8)
        layer.scales = weight(*stack, out_features, blocks, dtype=torch.uint8)

    def slots(self, layer: nn.Module) -> list[Slot]:
        blocks, scales = self.names.value
        return [
            Slot(blocks, layer.get_parameter("blocks"), (1, 2)),
            Slot(scales, layer.get_parameter("scales"), (1, MX_BLOCK)),
        ]

    def _scale(self, stored: Mapping[str, Tensor]) -> Tensor:
        exponents = stored["scales"].int() - EXPONENT_BIAS
        return torch.ldexp(torch.ones(exponents.shape, device=exponents.device), exponents)

    def _has_kernel(self, stored: Mapping[str, Tensor]) -> bool:
        return stored["blocks"].is_cuda and self.dtype == torch.bfloat16


@dataclass(frozen=True, slots=True)
class Nvfp4(_Fp4):
    """`blocks` [out, in / 2], two values in a byte, times `scales` (e4m3) and a factor of the projection."""

    NAME: ClassVar[str] = "nvfp4"
    names: Nvfp4Names

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        layer.blocks = weight(*stack, out_features, -(-in_features // 2), dtype=torch.uint8)
        layer.scales = weight(*stack, out_features, -(-in_features // NVFP4_BLOCK), dtype=FP8)
        layer.factor = weight(*stack, out_features, dtype=torch.float32)

    def slots(self, layer: nn.Module) -> list[Slot]:
        blocks, scales, factor = self.names.value
        return [
            Slot(blocks, layer.get_parameter("blocks"), (1, 2)),
            Slot(scales, layer.get_parameter("scales"), (1, NVFP4_BLOCK)),
            Slot(factor, layer.get_parameter("factor"), single=True),
        ]

    def _scale(self, stored: Mapping[str, Tensor]) -> Tensor:
        return stored["scales"].float() * self._factor(stored).unsqueeze(-1)

    def _factor(self, stored: Mapping[str, Tensor]) -> Tensor:
        return 1 / stored["factor"] if self.names.divided else stored["factor"]

    def _has_kernel(self, stored: Mapping[str, Tensor]) -> bool:
        return has_kernels(stored["scales"]) and self.dtype == torch.bfloat16
