"""Keys and values in 8-bit floats.

Attention reads every key and value as it is stored, also those of the tokens that a step computes. So an
answer does not depend on chunks, nor on the worker that computed a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

FP8: Final = torch.float8_e4m3fn
LARGEST: Final = 448.0
"""Largest value of e4m3; larger ones are clipped to it."""

KVScales: TypeAlias = Sequence[tuple[float, float]]
"""For each layer, the factors of stored keys and of stored values."""


def fp8(values: torch.Tensor, scale: float) -> torch.Tensor:
    """`values` in units of `scale`, in e4m3."""
    return (values.float() * (1.0 / scale)).clamp_(-LARGEST, LARGEST).to(FP8)


@dataclass(frozen=True, slots=True)
class Fp8KV:
    """Keys and values in e4m3, with two scales for each layer."""

    scales: KVScales

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The bytes that stand for a layer's keys and values, uint8."""
        of_keys, of_values = self.scales[layer]
        return fp8(keys, of_keys).view(torch.uint8), fp8(values, of_values).view(torch.uint8)

    def read(self, layer: int, kv: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Keys and values, [2, ..], from their bytes."""
        read = kv.view(FP8).float()
        for part, scale in zip(read, self.scales[layer], strict=True):
            part *= scale
        return read.to(dtype)
