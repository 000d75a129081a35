"""Weights in 4-bit floats (e2m1) with an exponent (e8m0) per block of input features: MXFP4 of the OCP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from engine.layers.formats.quantized import QuantizedWeight
from engine.layers.linear.codes import Codes
from engine.layers.linear.linear_layer import GroupedProduct, LinearMethod, Slot
from engine.model_config.quantization import MXFP4_BLOCK

__all__ = ["Mxfp4"]

_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Of the codes 0 to 15."""
_EXPONENT_BIAS: Final = 127


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
        blocks = stored["blocks"]
        return torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)

    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        table = torch.tensor(_VALUES, device=stored["blocks"].device)
        exponents = stored["scales"].int() - _EXPONENT_BIAS
        values = table[self.codes(stored).int()].view(*exponents.shape, MXFP4_BLOCK)
        return torch.ldexp(values, exponents.unsqueeze(-1)).flatten(-2).to(self.dtype)

    def coded(self, stored: Mapping[str, Tensor]) -> Codes:
        exponents = stored["scales"].int() - _EXPONENT_BIAS
        scale = torch.ldexp(torch.ones(exponents.shape, dtype=torch.float32), exponents)
        return Codes(self.codes(stored), scale, None, _VALUES)

    def on_device(self, stored: Mapping[str, Tensor]) -> LinearMethod | None:
        if not self._has_kernel(stored):
            return None
        from engine.layers.formats.mxfp4_gpu import Mxfp4OnGpu, packed

        return Mxfp4OnGpu(packed(self.codes(stored), stored["scales"]))

    def grouped_on_device(self, stored: Mapping[str, Tensor]) -> GroupedProduct | None:
        if not self._has_kernel(stored):
            return None
        from engine.layers.formats.mxfp4_gpu import GroupedMxfp4, packed

        return GroupedMxfp4(packed(self.codes(stored), stored["scales"]))

    def _has_kernel(self, stored: Mapping[str, Tensor]) -> bool:
        return stored["blocks"].is_cuda and self.dtype == torch.bfloat16


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.uint8), requires_grad=False)
