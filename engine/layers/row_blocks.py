"""oneDNN's blocked weights, seen as what they are: so that MKL can multiply single rows by them.

A call of oneDNN costs some 18 µs before it computes, one of MKL 1.5. Of a decode step for one request, four
small products a layer, that is a good part. Packed for float32, a weight [out, in] lies as [out / b, in, b]
with b as the vectors of the CPU want it: plain matrices, which a batched product reads where they are.
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


def row_blocks(packed_weight: Tensor, weight: Tensor) -> Tensor | None:
    """The blocks of `packed_weight`, if on this machine a single row is multiplied faster by them."""
    return blocks_of(packed_weight, weight) if packed_weight.is_mkldnn and _pay() else None


def blocks_of(packed_weight: Tensor, weight: Tensor) -> Tensor | None:
    """`packed_weight`'s own memory as [out / b, in, b]; None if it is laid out in any other way.

    Valid as long as `packed_weight` is. `weight` [out, in] is what was packed: every element is compared.
    """
    if not packed_weight.is_mkldnn or weight.dtype != torch.float32:
        return None
    num_bytes = torch.ops.mkldnn._nbytes(packed_weight)
    if num_bytes != weight.nbytes:
        return None
    memory = (ctypes.c_char * num_bytes).from_address(torch.ops.mkldnn.data_ptr(packed_weight))
    flat = torch.from_numpy(np.frombuffer(memory, dtype=np.float32))
    rows, columns = weight.shape
    for width in _WIDTHS:
        if rows % width == 0:
            blocks = flat.view(rows // width, columns, width)
            if torch.equal(blocks[0], weight[:width].t()):
                same = torch.equal(blocks.transpose(1, 2), weight.view(-1, width, columns))
                return blocks if same else None
    return None


@cache
def _pay() -> bool:
    """Measured once a process, on a weight that is larger than a core's own caches."""
    rows, columns = 3072, 576
    # Not random: whoever loads a model has seeded torch's generator for something else.
    weight = torch.linspace(-1, 1, rows * columns, dtype=torch.float32, device="cpu").view(rows, columns)
    x = weight[:1]
    onednn = packed(weight)
    blocks = blocks_of(onednn, weight)
    if blocks is None:
        return False
    return _fastest(lambda: linear(x, onednn, None, blocks)) < _fastest(lambda: linear(x, onednn))


def _fastest(product: Callable[[], Tensor]) -> float:
    """Seconds of the best of some runs."""
    took = []
    for _ in range(30):
        began = time.perf_counter()
        product()
        took.append(time.perf_counter() - began)
    return min(took)
