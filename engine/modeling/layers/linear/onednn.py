"""Weights in oneDNN's blocked layout, and products with them."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_ONEDNN: Final[bool] = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]

_TYPICAL_ROWS: Final = 16
"""The layout is chosen for products of this many rows; it is correct for any number."""


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` by oneDNN, for a packed `weight`."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def packed(weight: Tensor) -> Tensor:
    """A copy of `weight` in oneDNN's own blocked layout, where that is faster; otherwise `weight` itself.

    In float32 torch multiplies through MKL; oneDNN would have to rearrange a plain weight every time. With
    SmolLM2's layers the packed products took this many times as long as MKL's:

        rows                       1     4     16    512
        AMD, AVX2, one core        0.9   0.6   0.6   0.9
        Intel, AVX512, two cores   1.25  0.75  0.8   1.0

    A number of rows never seen before costs half a millisecond a shape, once: oneDNN compiles for it.
    `to_dense()` gives the plain weight back.
    """
    if not _packs(weight):
        return weight
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
    return result


def _packs(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not _ONEDNN:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
