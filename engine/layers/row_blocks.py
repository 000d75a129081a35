"""Views of oneDNN's blocked weights, so that MKL can multiply single rows by them.

A call of oneDNN costs some 18 µs before it computes, one of MKL 1.5 µs, which matters in a decode step of one
request with four small products per layer. oneDNN packs a float32 weight [out, in] as [out / b, in, b], with
b chosen by the CPU's vector width. These are plain matrices, which a batched product reads in place.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.layers.linear import linear
from engine.layers.onednn import packed

__all__ = ["blocks_of", "row_blocks"]

_WIDTHS: Final = (64, 48, 32, 24, 16, 8)

_widths: Final[dict[tuple[int, int, int], int | None]] = {}
"""By (out, in, threads), the width of the blocks of weights that were compared; None: they have no blocks."""


def row_blocks(packed_weight: Tensor, weight: Tensor) -> Tensor | None:
    """The blocks of `packed_weight`; None if this machine multiplies a single row faster without them."""
    return blocks_of(packed_weight, weight) if packed_weight.is_mkldnn and _pay() else None


def blocks_of(packed_weight: Tensor, weight: Tensor) -> Tensor | None:
    """The memory of `packed_weight` as [out / b, in, b]; None if it has another layout.

    Valid as long as `packed_weight` is. `weight` [out, in] is the weight before packing. The layout depends
    on the shape and the number of threads: for the first weight of a shape every element is compared.
    """
    if not packed_weight.is_mkldnn or weight.dtype != torch.float32:
        return None
    num_bytes = torch.ops.mkldnn._nbytes(packed_weight)
    if num_bytes != weight.nbytes:
        return None
    memory = (ctypes.c_char * num_bytes).from_address(torch.ops.mkldnn.data_ptr(packed_weight))
    flat = torch.from_numpy(np.frombuffer(memory, dtype=np.float32))
    rows, columns = weight.shape
    packing = rows, columns, torch.get_num_threads()
    if packing not in _widths:
        _widths[packing] = _width(flat, weight)
    width = _widths[packing]
    return None if width is None else flat.view(rows // width, columns, width)


def _width(flat: Tensor, weight: Tensor) -> int | None:
    """The b with which `flat` is [out / b, in, b] of `weight`; None if there is none."""
    rows, columns = weight.shape
    for width in _WIDTHS:
        if rows % width == 0:
            blocks = flat.view(rows // width, columns, width)
            if torch.equal(blocks[0], weight[:width].t()):
                same = torch.equal(blocks.transpose(1, 2), weight.view(-1, width, columns))
                return width if same else None
    return None


@cache
def _pay() -> bool:
    """Whether blocks are faster: measured once per process, on a weight larger than a core's caches."""
    rows, columns = 3072, 576
    # Not random: drawing would advance torch's generator, which the caller may have seeded.
    weight = torch.linspace(-1, 1, rows * columns, dtype=torch.float32, device="cpu").view(rows, columns)
    x = weight[:1]
    onednn = packed(weight)
    blocks = blocks_of(onednn, weight)
    if blocks is None:
        return False
    return _fastest(lambda: linear(x, onednn, None, blocks)) < _fastest(lambda: linear(x, onednn))


def _fastest(product: Callable[[], Tensor]) -> float:
    """Seconds of the fastest of 30 runs."""
    took = []
    for _ in range(30):
        began = time.perf_counter()
        product()
        took.append(time.perf_counter() - began)
    return min(took)
