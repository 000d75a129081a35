"""Products with oneDNN's packed bfloat16 weights, by a kernel of our own where it is faster.

Without AMX, oneDNN multiplies bfloat16 by VDPBF16PS, on Intel's processors at half the rate of float32; our
kernel converts and multiplies in float32. For few rows it also starts sooner: oneDNN takes some 18 µs before
it computes. With AMX, oneDNN is far ahead for many rows. The choice is therefore measured once per process,
for several row counts. Time relative to oneDNN for SmolLM2's four products, Xeon without AMX, one core:

    rows     1     2     4     16    32    512
    ours     0.88  0.88  0.80  0.82  0.64  0.59
"""

from __future__ import annotations

import ctypes
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.kernels.cpu.library import CpuKernels, cpu_kernels
from engine.layers.onednn import onednn_product, packed

__all__ = ["Panels", "fastest_panels", "panels_of"]

_WIDTH: Final = 64
"""Rows of the weight per panel."""
_DEPTH: Final = 32
"""The summed dimension must be a multiple of this; otherwise oneDNN pads it."""
_TRIALS: Final = (1, 4, 32, 256)
"""Row counts that are measured. Each also stands for those between it and the one before it; the last
for all larger ones."""
_TRIAL_SHAPE: Final = (3072, 576)
_FEWEST_RUNS, _MOST_RUNS, _MOST_SECONDS = 3, 20, 0.02

_known_packings: Final[set[tuple[int, int, int]]] = set()
"""(N, K, threads) of packed weights whose memory was compared and has the layout of `Panels`."""


@dataclass(frozen=True, slots=True)
class Panels:
    """A packed weight [N, K], seen as [N / 64, K / 2, 64, 2]. Valid as long as the packed weight is."""

    kernels: CpuKernels
    address: int
    features: int
    """N"""
    wins: tuple[bool, ...]
    """For each of `_TRIALS`, whether our kernel is faster."""

    def multiplies(self, rows: int) -> bool:
        return rows > 0 and self.wins[min(bisect_left(_TRIALS, rows), len(_TRIALS) - 1)]

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, K], rows contiguous, times the weight transposed, plus `bias`: [T, N]."""
        out = x.new_empty(len(x), self.features)
        self.kernels.linear(x, self.address, bias, out)
        return out


def fastest_panels(packed_weight: Tensor, weight: Tensor) -> Panels | None:
    """The panels of `packed_weight`; None if oneDNN is faster for all row counts."""
    if weight.dtype != torch.bfloat16:
        return None
    wins = _wins()
    return panels_of(packed_weight, weight, wins) if any(wins) else None


def panels_of(packed_weight: Tensor, weight: Tensor, wins: tuple[bool, ...]) -> Panels | None:
    """The panels of `packed_weight`; None if there is no kernel, or if the memory has another layout.

    `weight` [N, K] is the weight before packing. The layout depends on the shape and the number of threads:
    for the first weight of a shape every element is compared.
    """
    kernels = cpu_kernels(weight.dtype)
    features, depth = weight.shape
    if kernels is None or weight.dtype != torch.bfloat16 or not packed_weight.is_mkldnn:
        return None
    num_bytes = torch.ops.mkldnn._nbytes(packed_weight)
    if features % _WIDTH or depth % _DEPTH or num_bytes != weight.nbytes:
        return None
    address = torch.ops.mkldnn.data_ptr(packed_weight)
    memory = np.frombuffer((ctypes.c_char * num_bytes).from_address(address), dtype=np.int16)
    panels = torch.from_numpy(memory).view(features // _WIDTH, depth // 2, _WIDTH, 2)
    plain = weight.view(torch.int16).view(features // _WIDTH, _WIDTH, depth // 2, 2)
    packing = features, depth, torch.get_num_threads()
    if packing not in _known_packings:
        if not torch.equal(panels, plain.transpose(1, 2)):
            return None
        _known_packings.add(packing)
    return Panels(kernels, address, features, wins)


@cache
def _wins() -> tuple[bool, ...]:
    """Whether our kernel is faster, for each of `_TRIALS`. Measured once per process, on one weight."""
    features, depth = _TRIAL_SHAPE
    # Not random: drawing would advance torch's generator, which the caller may have seeded.
    weight = torch.linspace(-1, 1, features * depth, dtype=torch.float32, device="cpu")
    weight = weight.view(features, depth).bfloat16()
    onednn = packed(weight)
    panels = panels_of(onednn, weight, ())
    if panels is None:
        return ()
    wins = []
    for rows in _TRIALS:
        x = weight[:rows]
        ours = fastest(partial(panels.product, x, None))
        wins.append(ours < fastest(partial(onednn_product, x, onednn, None)))
    return tuple(wins)


def fastest(product: Callable[[], Tensor], most_seconds: float = _MOST_SECONDS) -> float:
    """Seconds of the fastest of 3 to 20 runs, which take some `most_seconds` together."""
    took: list[float] = []
    while len(took) < _FEWEST_RUNS or (len(took) < _MOST_RUNS and sum(took) < most_seconds):
        began = time.perf_counter()
        product()
        took.append(time.perf_counter() - began)
    return min(took)
