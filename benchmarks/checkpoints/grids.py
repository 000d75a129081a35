"""The values that quantized weights may have: 4-bit integers in groups, and 8-bit floats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol, Self

import torch
from torch import Tensor

_SHRINKS: Final = [1.0 - 0.025 * step for step in range(20)]
"""Of a group's range, that are tried."""
_FP8: Final = torch.float8_e4m3fn


class Grid(Protocol):
    """The values that a matrix [out, in] may have; codes are floats."""

    def codes(self, column: Tensor, index: int) -> Tensor:
        """Of column `index` [out] of a weight."""
        ...

    def values(self, codes: Tensor, index: int) -> Tensor:
        """Of codes of column `index`."""
        ...

    def all_codes(self, weight: Tensor) -> Tensor:
        """[out, in], of the nearest values."""
        ...

    def dense(self, codes: Tensor) -> Tensor: ...

    def rows(self, start: int, end: int) -> Self: ...

    def stored(self, codes: Tensor) -> dict[str, Tensor]: ...


@dataclass(frozen=True, slots=True)
class Matrix:
    """A quantized weight."""

    grid: Grid
    codes: Tensor

    @property
    def dense(self) -> Tensor:
        return self.grid.dense(self.codes)

    @property
    def stored(self) -> dict[str, Tensor]:
        return self.grid.stored(self.codes)


@dataclass(frozen=True, slots=True)
class Floats:
    """value = code * scale, with a scale per row: e4m3."""

    scale: Tensor
    """[out, 1]"""

    def codes(self, column: Tensor, index: int) -> Tensor:
        return (column / self.scale[:, 0]).clamp(-448, 448).to(_FP8).float()

    def values(self, codes: Tensor, index: int) -> Tensor:
        return codes * self.scale[:, 0]

    def all_codes(self, weight: Tensor) -> Tensor:
        return (weight / self.scale).clamp(-448, 448).to(_FP8).float()

    def dense(self, codes: Tensor) -> Tensor:
        return codes * self.scale

    def rows(self, start: int, end: int) -> Self:
        return replace(self, scale=self.scale[start:end])

    def stored(self, codes: Tensor) -> dict[str, Tensor]:
        return {"weight": codes.to(_FP8), "weight_scale": self.scale}


@dataclass(frozen=True, slots=True)
class Integers:
    """value = (code - zero) * scale, with a scale and a zero per row and group."""

    scale: Tensor
    """[out, groups]"""
    zero: Tensor
    group: int
    symmetric: bool

    def codes(self, column: Tensor, index: int) -> Tensor:
        at = index // self.group
        return (column / self.scale[:, at] + self.zero[:, at]).round().clamp(0, 15)

    def values(self, codes: Tensor, index: int) -> Tensor:
        at = index // self.group
        return (codes - self.zero[:, at]) * self.scale[:, at]

    def all_codes(self, weight: Tensor) -> Tensor:
        grouped = weight.view(*self.scale.shape, -1)
        codes = grouped / self.scale.unsqueeze(2) + self.zero.unsqueeze(2)
        return codes.round().clamp(0, 15).flatten(1)

    def dense(self, codes: Tensor) -> Tensor:
        steps = codes.reshape(*self.scale.shape, -1) - self.zero.unsqueeze(2)
        return (steps * self.scale.unsqueeze(2)).flatten(1)

    def rows(self, start: int, end: int) -> Self:
        return replace(self, scale=self.scale[start:end], zero=self.zero[start:end])

    def stored(self, codes: Tensor) -> dict[str, Tensor]:
        tensors = {
            "weight_packed": _words(codes),
            "weight_scale": self.scale.half(),
            "weight_shape": torch.tensor(codes.shape),
        }
        if not self.symmetric:
            tensors["weight_zero_point"] = _words(self.zero.t()).t().contiguous()
        return tensors


def floats(weight: Tensor, moments: Tensor) -> Floats:
    return Floats(weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 448)


def integers(weight: Tensor, moments: Tensor, group: int, *, symmetric: bool) -> Integers:
    """Of the least error of a group's products, by the mean squares of its inputs."""
    importance = moments.diagonal().view(1, -1, group)
    grouped = weight.view(len(weight), -1, group)
    low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    best = torch.full_like(low, torch.inf)
    scale, zero = torch.ones_like(low), torch.zeros_like(low)
    for shrink in _SHRINKS:
        step = ((high - low) * shrink / 15).half().float().clamp(min=1e-6)
        for shift in (0,) if symmetric else (-1, 0, 1):
            nought = torch.full_like(low, 8) if symmetric else (-low * shrink / step).round() + shift
            nought = nought.clamp(0, 15)
            codes = (grouped / step.unsqueeze(2) + nought.unsqueeze(2)).round().clamp(0, 15)
            error = ((codes - nought.unsqueeze(2)) * step.unsqueeze(2) - grouped).square()
            error = (error * importance).sum(2)
            better = error < best
            best = torch.where(better, error, best)
            scale, zero = torch.where(better, step, scale), torch.where(better, nought, zero)
    return Integers(scale, zero, group, symmetric)


def _words(codes: Tensor) -> Tensor:
    """[m, 8 n] -> [m, n] int32, the first value in the lowest bits."""
    words: Tensor = (
        codes.long().reshape(len(codes), -1, 8) << torch.arange(0, 32, 4, device=codes.device)
    ).sum(2)
    return (words - ((words >> 31) << 32)).int()
