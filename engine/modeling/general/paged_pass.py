"""Computes the attention of transformers' modules on the pages of the KV pool.

All layers of a pool have equal heads. Where a model's layers differ, or values are narrower than keys, heads
and features of zeros fill what is missing: they change no score and no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.general_spec import GeneralLayer
from engine.modeling.general.interface import AttentionCall
from engine.modeling.models.base import Attention


@dataclass(frozen=True, slots=True)
class PooledHeads:
    """The heads of a layer among those of the pool."""

    layer: GeneralLayer
    kv_heads: int
    group: int
    """Query heads of the pool for one of its key heads."""
    head_dim: int

    @classmethod
    def of(cls, layer: GeneralLayer, spec: ModelSpec) -> PooledHeads:
        return cls(layer, spec.num_kv_heads, spec.num_heads // spec.num_kv_heads, spec.head_dim)

    def joined(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[T, heads, 1, features] each, as attention takes them: [T, H + 2 KVH, D]."""
        layer, tokens = self.layer, len(query)
        parts = [query.reshape(tokens, layer.kv_heads, -1, layer.head_dim), key, value]
        room = (self.group, 1, 1)
        filled = [self._filled(part, heads).flatten(1, 2) for part, heads in zip(parts, room, strict=True)]
        return torch.cat(filled, dim=1)

    def placed(self, of_heads: Tensor) -> Tensor:
        """[heads of the layer] as [H of the pool]: the same tensor if the layer has them all."""
        if len(of_heads) == self.kv_heads * self.group:
            return of_heads
        by_key = of_heads.view(1, self.layer.kv_heads, -1, 1)
        room = (0, 0, 0, self.group - by_key.shape[2], 0, self.kv_heads - self.layer.kv_heads)
        return functional.pad(by_key, room).flatten()

    def _filled(self, heads: Tensor, group: int) -> Tensor:
        """[T, KVH of the layer, n, features] with zeros up to [T, KVH, group, D]."""
        _, kv_heads, inner, features = heads.shape
        lacking = (self.head_dim - features, group - inner, self.kv_heads - kv_heads)
        if not any(lacking):
            return heads
        return functional.pad(heads, [n for amount in lacking for n in (0, amount)])

    def taken(self, out: Tensor) -> Tensor:
        """The layer's part of the results [T, H, D], as [T, 1, heads, features]."""
        layer = self.layer
        if (self.kv_heads, self.group) != (layer.kv_heads, layer.heads // layer.kv_heads):
            by_key = out.view(len(out), self.kv_heads, self.group, -1)
            out = by_key[:, : layer.kv_heads, : layer.heads // layer.kv_heads].flatten(1, 2)
        return out[:, None, :, : layer.value_dim].contiguous()


@dataclass(slots=True)
class PagedPass:
    """A `Pass` over the tokens of a step."""

    attention: Attention
    heads: Sequence[PooledHeads]
    _next: int = field(default=0)

    def attend(self, call: AttentionCall) -> Tensor:
        index, self._next = self._next, self._next + 1
        heads = self.heads[index]
        out = self.attention.forward(index, heads.joined(call.query, call.key, call.value), None)
        return heads.taken(out)

    def mask(self, **options: Any) -> object:
        raise RuntimeError("a step builds no masks")
