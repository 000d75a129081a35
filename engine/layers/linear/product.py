"""The product of activations and a weight matrix, where a model spends most of its time."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from engine.layers.linear.onednn import onednn_product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times `weight` [out, in] transposed, plus `bias` [out]: [T, out]."""
    if weight.is_mkldnn:
        return onednn_product(x, weight, bias)
    if x.is_cuda and len(x) == 1:
        from engine.kernels.matmul.matvec import matvec, suits  # Triton ships only with torch's CUDA builds

        if suits(x, weight):
            return matvec(x, weight, bias)
    return functional.linear(x, weight, bias)
