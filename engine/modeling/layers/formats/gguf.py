"""Weights of converted GGUF files: integers of up to 8 bits with a scale and an offset per group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from engine.modeling.layers.formats.quantized import QuantizedWeight
from engine.modeling.layers.linear.codes import SIGNED4, Codes
from engine.modeling.layers.linear.linear_layer import Slot, weight

_WIDE: Final = 32
"""Columns of the groups of most types. Where only some tensors have narrower ones, scales come in pairs."""


@dataclass(frozen=True, slots=True)
class GgufCodes(QuantizedWeight):
    """code * scale + offset, where `group` input features of a row share a scale and an offset."""

    NAME: ClassVar[str] = "gguf"
    group: int
    offsets: bool
    """Whether there are any."""

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        groups = *stack, out_features, -(-in_features // self.group)
        layer.codes = weight(*stack, out_features, in_features, dtype=torch.int8)
        layer.scales = weight(*groups, dtype=torch.float32)
        if self.offsets:
            layer.offsets = weight(*groups, dtype=torch.float32)

    def slots(self, layer: nn.Module) -> list[Slot]:
        per_group = ["scales", "offsets"] if self.offsets else ["scales"]
        return [
            Slot("codes", layer.get_parameter("codes")),
            *(Slot(name, layer.get_parameter(name), (1, self.group)) for name in per_group),
        ]

    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        return Codes(stored["codes"], stored["scales"], stored.get("offsets")).dense(self.dtype)

    def coded(self, stored: Mapping[str, Tensor]) -> Codes:
        codes, scale, offset = stored["codes"], stored["scales"], stored.get("offsets")
        if offset is not None and not offset.any():
            offset = None
        if self.group < _WIDE and all(_in_pairs(part) for part in (scale, offset) if part is not None):
            scale, offset = scale[..., ::2], None if offset is None else offset[..., ::2]
        low, high = (int(extreme) for extreme in codes.aminmax())
        if low >= 0 and high <= 15:
            return Codes(codes, scale, offset, tuple(map(float, range(16))))
        if low >= -8 and high <= 7:
            return Codes(codes + 8, scale, offset, SIGNED4)
        return Codes(codes, scale, offset)


def _in_pairs(groups: Tensor) -> bool:
    return groups.shape[-1] % 2 == 0 and torch.equal(groups[..., ::2], groups[..., 1::2])
