"""Ministral 3: queries grow with their position beyond the context before YaRN."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.models.base import Attention
from engine.modeling.models.llama import LlamaModel


class Ministral3Model(LlamaModel):
    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        rope = self.spec.rope
        assert rope is not None
        contexts = torch.floor(positions.float() / rope.original_max_position)
        factors = 1 + rope.query_scaling * torch.log1p(contexts)
        scaled = _ScaledQueries(attn, factors.to(self.embed.weight.dtype), self.part.num_heads)
        return super().forward(input_ids, positions, scaled)


class _ScaledQueries:
    """An `Attention` whose queries are scaled: before their rotation, which is linear."""

    def __init__(self, attn: Attention, factors: Tensor, num_heads: int) -> None:
        """`factors` [T]."""
        self._attn = attn
        self._factors = factors[:, None, None]
        self._num_heads = num_heads

    def forward(self, layer: int, qkv: Tensor, rotation: Rotation | None) -> Tensor:
        qkv[:, : self._num_heads] *= self._factors
        return self._attn.forward(layer, qkv, rotation)
