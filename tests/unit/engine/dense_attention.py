"""Attention over one whole sequence in one call: no pages, no batch. The simplest thing that can be right."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from engine.layers.ops import Rotation


class DenseAttention:
    """The step's tokens are one sequence from its start."""

    def __init__(self, num_heads: int) -> None:
        self._num_heads = num_heads

    def forward(self, layer: int, qkv: Tensor, rotation: Rotation | None) -> Tensor:
        kv_heads = (qkv.shape[1] - self._num_heads) // 2
        q, k, v = qkv.split([self._num_heads, kv_heads, kv_heads], dim=1)
        if rotation is not None:
            q, k = rotation.turn(q), rotation.turn(k)
        q, k, v = (heads.transpose(0, 1) for heads in (q, k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return attended.transpose(0, 1)
