"""Weights in 4- or 8-bit integers with a scale, and perhaps a zero point, per group of input features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from engine.model_config.quantization import Packing
from engine.modeling.layers.formats.quantized import QuantizedWeight
from engine.modeling.layers.linear.codes import SIGNED4, Codes
from engine.modeling.layers.linear.linear_layer import GroupedProduct, LinearMethod, Slot, weight

_AWQ_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position of each value in AWQ's words."""


def _unpack_last(words: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """[..., n] int32 -> [..., 32 / bits * n] uint8. `order`: the position in a word of each value."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    if order is not None:
        shifts = shifts[list(order)]
    return (words.unsqueeze(-1) >> shifts & (1 << bits) - 1).to(torch.uint8).flatten(-2)


def _unpack_rows(words: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """[..., n, m] int32 -> [..., 32 / bits * n, m] uint8."""
    return _unpack_last(words.transpose(-1, -2), bits, order).transpose(-1, -2)


@dataclass(frozen=True, slots=True)
class IntegerGroups(QuantizedWeight):
    """(value - zero) * scale, where `group` input features of a row share a zero and a scale.

    AWQ packs the values of several rows in a word, the first in its lowest bits; GPTQ and compressed-tensors
    those of several columns. 8 bits may also be stored apart, as signed integers.
    """

    NAME: ClassVar[str] = "integer"
    packing: Packing
    bits: int
    group: int | None
    """None: whole rows."""
    zero_points: bool
    zero_offset: int = 0
    """What GPTQ's first format subtracts from zero points before it stores them."""

    @property
    def _per_word(self) -> int:
        return 1 if self.packing is Packing.NONE else 32 // self.bits

    @property
    def _span(self) -> int | None:
        """Input features that one column of the scales stands for; None: a rank has all columns."""
        return self.group

    def _groups(self, in_features: int) -> int:
        """Columns of the scales."""
        return 1 if self.group is None else -(-in_features // self.group)

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        groups, words = self._groups(in_features), -(-out_features // self._per_word)
        by_row = (words, in_features), (out_features, -(-in_features // self._per_word))
        shape = by_row[0] if self.packing is Packing.AWQ else by_row[1]
        dtype = torch.int8 if self.packing is Packing.NONE else torch.int32
        layer.words = weight(*stack, *shape, dtype=dtype)
        layer.scale = weight(*stack, out_features, groups, dtype=torch.float32)
        if self.zero_points:
            layer.zero_words = weight(*stack, words, groups, dtype=torch.int32)

    def slots(self, layer: nn.Module) -> list[Slot]:
        words, zeros, scale = _NAMES[self.packing]
        transposed = self.packing in (Packing.AWQ, Packing.GPTQ)
        tile = (self._per_word, 1) if self.packing is Packing.AWQ else (1, self._per_word)
        slots = [
            Slot(words, layer.get_parameter("words"), tile, transposed=transposed),
            Slot(scale, layer.get_parameter("scale"), (1, self._span), transposed=transposed),
        ]
        if self.zero_points:
            target = layer.get_parameter("zero_words")
            slots.append(Slot(zeros, target, (self._per_word, self._span), transposed=transposed))
        return slots

    def values(self, stored: Mapping[str, Tensor]) -> Tensor:
        """The stored values: uint8 [..., out, in]."""
        if self.packing is Packing.NONE:
            return (stored["words"].to(torch.int16) + self._middle).to(torch.uint8)
        if self.packing is Packing.AWQ:
            return _unpack_rows(stored["words"], self.bits, _AWQ_ORDER)
        return _unpack_last(stored["words"], self.bits)

    @property
    def _middle(self) -> int:
        """The value that stands for 0 where there are no zero points."""
        return 1 << (self.bits - 1)

    def zeros(self, stored: Mapping[str, Tensor]) -> Tensor:
        """The value that stands for 0: float32 [..., out, groups]."""
        if not self.zero_points:
            return torch.full_like(stored["scale"], self._middle)
        order = _AWQ_ORDER if self.packing is Packing.AWQ else None
        zeros = _unpack_rows(stored["zero_words"], self.bits, order)[..., : stored["scale"].shape[-2], :]
        return zeros.float() + self.zero_offset

    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        values, zeros, scale = self.values(stored), self.zeros(stored), stored["scale"]
        grouped = values.reshape(*scale.shape, -1).float()
        weights: Tensor = (grouped - zeros.unsqueeze(-1)) * scale.unsqueeze(-1)
        return weights.flatten(-2).to(self.dtype)

    def coded(self, stored: Mapping[str, Tensor]) -> Codes | None:
        scale, values = stored["scale"], self.values(stored)
        offsets = (self._middle - self.zeros(stored)) * scale
        offset = offsets if offsets.any() else None
        if self.bits == 4:
            return Codes(values, scale, offset, SIGNED4)
        return Codes((values.to(torch.int16) - self._middle).to(torch.int8), scale, offset)

    def on_device(self, stored: Mapping[str, Tensor]) -> LinearMethod | None:
        if not self._has_kernel(stored):
            return None
        from engine.modeling.layers.formats.packed4_gpu import (  # Triton: only in torch's CUDA builds
            Packed4OnGpu,
            interleaved,
        )

        return Packed4OnGpu(interleaved(self.values(stored), self.zeros(stored), stored["scale"]))

    def grouped_on_device(self, stored: Mapping[str, Tensor]) -> GroupedProduct | None:
        if not self._has_kernel(stored):
            return None
        from engine.modeling.layers.formats.packed4_gpu import GroupedPacked4, interleaved

        return GroupedPacked4(interleaved(self.values(stored), self.zeros(stored), stored["scale"]))

    def _has_kernel(self, stored: Mapping[str, Tensor]) -> bool:
        depth = stored["words"].shape[-1] * (1 if self.packing is Packing.AWQ else self._per_word)
        width = depth // stored["scale"].shape[-1]
        suits = self.bits == 4 and (width in (32, 64) or width % 128 == 0)
        return stored["words"].is_cuda and self.dtype != torch.float32 and suits


_NAMES: Final = {
    Packing.AWQ: ("qweight", "qzeros", "scales"),
    Packing.GPTQ: ("qweight", "qzeros", "scales"),
    Packing.COMPRESSED: ("weight_packed", "weight_zero_point", "weight_scale"),
    Packing.NONE: ("weight", "weight_zero_point", "weight_scale"),
}
"""Names of values, zero points and scales in checkpoints."""
