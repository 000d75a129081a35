"""Weights in 4-bit integers with a scale, and perhaps a zero point, per group of input features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from engine.layers.formats.quantized import QuantizedWeight
from engine.layers.linear.codes import SIGNED4, Codes
from engine.layers.linear.linear_layer import GroupedProduct, LinearMethod, Slot
from engine.model_config.quantization import Int4Packing

__all__ = ["Int4Groups"]

_PER_WORD: Final = 8
"""Values in an int32, the first in the lowest bits."""
_SYMMETRIC_ZERO: Final = 8
_AWQ_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position of each value in AWQ's words."""


def _unpack_last(words: Tensor, order: tuple[int, ...] | None = None) -> Tensor:
    """[..., n] int32 -> [..., 8 n] uint8. `order`: the position in a word of each value."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    if order is not None:
        shifts = shifts[list(order)]
    return (words.unsqueeze(-1) >> shifts & 15).to(torch.uint8).flatten(-2)


def _unpack_rows(words: Tensor, order: tuple[int, ...] | None = None) -> Tensor:
    """[..., n, m] int32 -> [..., 8 n, m] uint8."""
    return _unpack_last(words.transpose(-1, -2), order).transpose(-1, -2)


@dataclass(frozen=True, slots=True)
class Int4Groups(QuantizedWeight):
    """(value - zero) * scale, where `group` input features of a row share a zero and a scale.

    AWQ packs the values of eight rows in a word, GPTQ and compressed-tensors those of eight columns.
    """

    NAME: ClassVar[str] = "4-bit"
    packing: Int4Packing
    group: int | None
    """None: whole rows."""
    zero_points: bool
    zero_offset: int = 0
    """What GPTQ's first format subtracts from zero points before it stores them."""

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        groups = 1 if self.group is None else -(-in_features // self.group)
        words = -(-out_features // _PER_WORD)
        by_row = (words, in_features), (out_features, -(-in_features // _PER_WORD))
        shape = by_row[0] if self.packing is Int4Packing.AWQ else by_row[1]
        layer.words = _parameter(*stack, *shape, dtype=torch.int32)
        layer.scale = _parameter(*stack, out_features, groups, dtype=torch.float32)
        if self.zero_points:
            layer.zero_words = _parameter(*stack, words, groups, dtype=torch.int32)

    def slots(self, layer: nn.Module) -> list[Slot]:
        words, zeros, scale = _NAMES[self.packing]
        transposed = self.packing is not Int4Packing.COMPRESSED
        tile = (_PER_WORD, 1) if self.packing is Int4Packing.AWQ else (1, _PER_WORD)
        slots = [
            Slot(words, layer.get_parameter("words"), tile, transposed=transposed),
            Slot(scale, layer.get_parameter("scale"), (1, self.group), transposed=transposed),
        ]
        if self.zero_points:
            target = layer.get_parameter("zero_words")
            slots.append(Slot(zeros, target, (_PER_WORD, self.group), transposed=transposed))
        return slots

    def values(self, stored: Mapping[str, Tensor]) -> Tensor:
        """The stored values: uint8 [..., out, in]."""
        if self.packing is Int4Packing.AWQ:
            return _unpack_rows(stored["words"], _AWQ_ORDER)
        return _unpack_last(stored["words"])

    def zeros(self, stored: Mapping[str, Tensor]) -> Tensor:
        """The value that stands for 0: float32 [..., out, groups]."""
        if not self.zero_points:
            return torch.full_like(stored["scale"], _SYMMETRIC_ZERO)
        order = _AWQ_ORDER if self.packing is Int4Packing.AWQ else None
        zeros = _unpack_rows(stored["zero_words"], order)[..., : stored["scale"].shape[-2], :]
        return zeros.float() + self.zero_offset

    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        values, zeros, scale = self.values(stored), self.zeros(stored), stored["scale"]
        grouped = values.reshape(*scale.shape, -1).float()
        weights: Tensor = (grouped - zeros.unsqueeze(-1)) * scale.unsqueeze(-1)
        return weights.flatten(-2).to(self.dtype)

    def coded(self, stored: Mapping[str, Tensor]) -> Codes:
        scale = stored["scale"]
        offset = (_SYMMETRIC_ZERO - self.zeros(stored)) * scale
        return Codes(self.values(stored), scale, offset if offset.any() else None, SIGNED4)

    def on_device(self, stored: Mapping[str, Tensor]) -> LinearMethod | None:
        if not self._has_kernel(stored):
            return None
        from engine.layers.formats.packed4_gpu import (  # Triton: only in torch's CUDA builds
            Packed4OnGpu,
            interleaved,
        )

        return Packed4OnGpu(interleaved(self.values(stored), self.zeros(stored), stored["scale"]))

    def grouped_on_device(self, stored: Mapping[str, Tensor]) -> GroupedProduct | None:
        if not self._has_kernel(stored):
            return None
        from engine.layers.formats.packed4_gpu import GroupedPacked4, interleaved

        return GroupedPacked4(interleaved(self.values(stored), self.zeros(stored), stored["scale"]))

    def _has_kernel(self, stored: Mapping[str, Tensor]) -> bool:
        depth = stored["words"].shape[-1] * (1 if self.packing is Int4Packing.AWQ else _PER_WORD)
        width = depth // stored["scale"].shape[-1]
        suits = width in (32, 64) or width % 128 == 0
        return stored["words"].is_cuda and self.dtype != torch.float32 and suits


_NAMES: Final = {
    Int4Packing.AWQ: ("qweight", "qzeros", "scales"),
    Int4Packing.GPTQ: ("qweight", "qzeros", "scales"),
    Int4Packing.COMPRESSED: ("weight_packed", "weight_zero_point", "weight_scale"),
}
"""Of values, zero points and scales in checkpoints."""


def _parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
