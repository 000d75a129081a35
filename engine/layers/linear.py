"""The product of activations and a weight matrix, where a model spends most of its time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.layers.onednn import onednn_product
from engine.layers.panels import Panels

__all__ = ["linear"]


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    blocks: Tensor | None = None,
    panels: Panels | None = None,
) -> Tensor:
    """x [T, in] times `weight` [out, in] transposed, plus `bias` [out]: [T, out].

    `blocks`: the blocks of a packed `weight`, if a single row is multiplied faster by them. `panels`: its
    panels, used for the row counts at which they are faster.
    """
    if panels is not None and panels.multiplies(len(x)):
        return panels.product(x, bias)
    if blocks is not None and len(x) == 1:
        row = torch.bmm(x.expand(len(blocks), 1, -1), blocks).view(1, -1)
        return row if bias is None else row.add_(bias)
    if weight.is_mkldnn:
        return onednn_product(x, weight, bias)
    if x.is_cuda and len(x) == 1:
        from engine.kernels.matvec import matvec, suits  # Triton ships only with torch's CUDA builds

        if suits(x, weight):
            return matvec(x, weight, bias)
    return functional.linear(x, weight, bias)
