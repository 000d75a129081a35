"""The product of activations and a weight matrix: where nearly all of a model's time goes."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["linear", "packed"]

_ONEDNN: Final[bool] = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]

_TYPICAL_ROWS: Final = 16
"""The layout is picked for products of this many rows; it is right for any, and costs nothing at 1 or 512."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times `weight` [out, in] transposed, plus `bias` [out]: [T, out]."""
    if weight.is_mkldnn:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    if x.is_cuda and len(x) == 1:
        from engine.kernels.matvec import matvec, suits  # Triton comes with torch's CUDA builds alone

        if suits(x, weight):
            return matvec(x, weight, bias)
    return functional.linear(x, weight, bias)


def packed(weight: Tensor) -> Tensor:
    """A copy of `weight` in oneDNN's own blocked layout, where that is faster; otherwise `weight` itself.

    In float32 torch multiplies through MKL; oneDNN would have to rearrange a plain weight every time. With
    SmolLM2's layers on one Zen core, the packed product took 0.9 times as long as MKL's for 1 row, 0.6 for
    4 to 16 (decode batches) and 0.9 for 512. A number of rows never seen before costs half a millisecond a
    shape, once: oneDNN compiles for it. `to_dense()` gives the plain weight back.
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
