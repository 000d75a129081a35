"""Attention over one whole sequence in one call: no pages, no batch. The simplest thing that can be right."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


class DenseAttention:
    """The step's tokens are one sequence from its start."""

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (heads.transpose(0, 1) for heads in (q, k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return attended.transpose(0, 1)
