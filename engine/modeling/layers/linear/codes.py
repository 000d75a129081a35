"""Weights in 4 or 8 bits on a CPU, and their products by a kernel of our own where it is the faster one.

The dequantized weights take 3 to 8 times the memory, and a decode reads all of them. Which one serves is
measured, once per process, dtype and width.
"""

from __future__ import annotations

from ctypes import c_float
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.cpu.library import CpuKernels, Quantized, cpu_kernels
from engine.modeling.layers.linear.onednn import onednn_product, packed
from engine.modeling.layers.linear.panels import (
    TRIAL_ROWS,
    MeasuredOnce,
    faster,
    faster_panels,
    fastest,
    must_be_uniform,
)

SIGNED4: Final = tuple(float(value) for value in range(-8, 8))

_WIDTH: Final = 64
"""Columns of a panel: rows of the weight."""
_LANES: Final = 16
_DEEPEST: Final = 128
"""Columns of the weight in the widest group that the kernel takes."""
_TRIAL_SHAPE: Final = (4096, 2048)


@dataclass(frozen=True, slots=True)
class Codes:
    """A weight [N, K], or a stack [E, N, K] of them: values[code] * scale + offset."""

    codes: Tensor
    """[..., N, K]: the values themselves in int8, or with `values` 0 to 15 in 8 bits."""
    scale: Tensor
    """[..., N, groups] float32"""
    offset: Tensor | None
    """Same shape and dtype."""
    values: tuple[float, ...] | None = None
    """What the codes 0 to 15 stand for; all exact in bfloat16."""

    def dense(self, dtype: torch.dtype) -> Tensor:
        """[..., N, K], computed in float32."""
        numbers = self.codes if self.values is None else torch.tensor(self.values)[self.codes.int()]
        grouped = numbers.float().reshape(*self.scale.shape, -1) * self.scale.unsqueeze(-1)
        if self.offset is not None:
            grouped += self.offset.unsqueeze(-1)
        return grouped.flatten(-2).to(dtype)


@dataclass(frozen=True, slots=True)
class CodePanels:
    """A weight [N, K] in the layout of quantized.h."""

    kernels: CpuKernels = field(compare=False)
    features: int
    """N"""
    memory: tuple[Tensor, ...]
    """Codes, scales, and offsets if there are any."""
    values: tuple[float, ...] | None
    """As in `Codes`."""
    weight: Quantized = field(compare=False)
    """For the kernels: points to `memory`."""

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, K], rows contiguous, times the weight transposed, plus `bias`: [T, N]."""
        out = x.new_empty(len(x), self.features)
        self.kernels.quantized_linear(x, self.weight, bias, out)
        return out


def faster_code_panels(weight: Codes, dtype: torch.dtype) -> list[CodePanels] | None:
    """A matrix, or those of a stack, for activations of `dtype`.

    None: there is no kernel for them, or dense products are faster here.
    """
    group = weight.codes.shape[-1] // weight.scale.shape[-1]
    if not _suits(group) or cpu_kernels(dtype) is None:
        return None
    # A trial would choose by machine and moment; products of codes have one order of summation.
    if not must_be_uniform() and not code_panels_win(dtype, weight.values is not None):
        return None
    if weight.codes.dim() == 2:
        return [_code_panels(weight, dtype)]
    offsets = [None] * len(weight.codes) if weight.offset is None else weight.offset
    parts = zip(weight.codes, weight.scale, offsets, strict=True)
    return [_code_panels(Codes(*part, weight.values), dtype) for part in parts]


def _suits(group: int) -> bool:
    return group % (_LANES if group <= _DEEPEST else _DEEPEST) == 0


def _code_panels(weight: Codes, dtype: torch.dtype) -> CodePanels:
    kernels = cpu_kernels(dtype)
    assert kernels is not None, "code_panels_win compares kernels"
    features, depth = weight.codes.shape
    group = depth // weight.scale.shape[-1]
    parts = max(1, group // _DEEPEST)
    codes = _panels(weight.codes.t())  # [P, K, 64]
    codes = codes.view(len(codes), depth // 2, 2, _WIDTH)
    if weight.values is None:
        codes = codes.transpose(2, 3).contiguous()
    else:
        quarters = codes.view(*codes.shape[:-1], 4, _LANES).to(torch.int32)
        shifts = torch.arange(0, 16, 4, dtype=torch.int32).unsqueeze(-1)
        words = (quarters << shifts).sum(-2, dtype=torch.int32)
        codes = words.to(torch.uint16).transpose(2, 3).contiguous()
    scales = _of_groups(weight.scale, parts)
    offsets = None if weight.offset is None else _of_groups(weight.offset, parts)
    memory = (codes, scales) if offsets is None else (codes, scales, offsets)
    described = Quantized(
        bits=8 if weight.values is None else 4,
        group=group // parts,
        codes=codes.data_ptr(),
        scales=scales.data_ptr(),
        offsets=None if offsets is None else offsets.data_ptr(),
        values=(c_float * 16)(*(weight.values or ())),
    )
    return CodePanels(kernels, features, memory, weight.values, described)


def _of_groups(values: Tensor, parts: int) -> Tensor:
    """[N, groups] -> [P, parts * groups, 64]"""
    return _panels(values.repeat_interleave(parts, -1).t()).contiguous()


def _panels(columns: Tensor) -> Tensor:
    """[n, N] -> [P, n, 64], the last panel filled up with zeros."""
    count, features = columns.shape
    panels = -(-features // _WIDTH)
    whole = functional.pad(columns, (0, panels * _WIDTH - features))
    return whole.view(count, panels, _WIDTH).transpose(0, 1)


@MeasuredOnce
def code_panels_win(dtype: torch.dtype, four_bits: bool) -> bool:
    """Whether codes are faster than dense weights, by the mean over several numbers of rows.

    Measured on one weight, in groups of 32 with offsets.
    """
    if cpu_kernels(dtype) is None:
        return False
    features, depth = _TRIAL_SHAPE
    codes = torch.arange(features * depth, device="cpu").view(features, depth) % 16
    scale = torch.full((features, depth // 32), 0.01, dtype=torch.float32, device="cpu")
    weight = Codes(codes.to(torch.int8), scale, scale, SIGNED4 if four_bits else None)
    ours = _code_panels(weight, dtype)
    dense = weight.dense(dtype)
    panels = faster_panels(dense)
    theirs = partial(onednn_product, weight=packed(dense)) if panels is None else panels.product
    inputs = [dense[:rows] for rows in TRIAL_ROWS]
    return faster(
        (fastest(partial(ours.product, x, None)) for x in inputs),
        (fastest(partial(theirs, x, bias=None)) for x in inputs),
    )
