"""Kernels for keys and values in pages: flashinfer's for prompt chunks, our own for decodes."""

from __future__ import annotations

import torch

from engine.kernels.attention.decode_attention import DecodeWorkspace, NewTokens
from engine.kernels.attention.rotate_store import rotate_store
from engine.kv.cache.pool import KVPool
from engine.mixers.attention.decode_planner import DecodePlanner
from engine.mixers.attention.flashinfer.chunks import ChunkAttention, ChunkWorkspace
from engine.mixers.attention.flashinfer.kernels import Heads
from engine.mixers.attention.paged_decodes import DecodeAttention
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.ops.flashinfer_ops import Positions
from engine.modeling.layers.ops.ops import Rotation


class PagedKernels:
    """For a pool of keys and values. `AttentionKernels` of the GPU backend."""

    def __init__(self, pool: KVPool, num_heads: int, *, max_requests: int) -> None:
        self._pool = pool
        self._heads = Heads(num_heads, pool.num_kv_heads, pool.head_dim)
        self._chunk_workspace = ChunkWorkspace(pool, self._heads)
        self._planner = DecodePlanner(
            multiprocessors=self._chunk_workspace.multiprocessors,
            num_kv_heads=pool.num_kv_heads,
            page_size=pool.page_size,
        )
        self._decode_workspace = DecodeWorkspace(
            self._planner.most_parts(max_requests),
            max_requests,
            num_heads,
            pool.num_kv_heads,
            pool.head_dim,
            pool.tensor.device,
        )

    @property
    def value_dim(self) -> int:
        return self._heads.dim

    def chunks(self, rule: LayerAttention) -> ChunkAttention:
        return ChunkAttention(self._pool, self._heads, self._chunk_workspace, rule)

    def decodes(self, rule: LayerAttention) -> DecodeAttention:
        return DecodeAttention(self._planner, self._decode_workspace, rule, self._pool.tensor.device)

    def new_tokens(self, layer: int, rotation: Rotation | None) -> NewTokens:
        return NewTokens(_angles(rotation), self._pool.fp8.scales[layer] if self._pool.fp8 else None)

    def store(
        self,
        layer: int,
        qkv: torch.Tensor,
        rotation: Rotation | None,
        slots: torch.Tensor,
        queries: torch.Tensor,
    ) -> None:
        new = self.new_tokens(layer, rotation)
        rotate_store(qkv, new.angles, self._pool.layer(layer), slots, queries, new.scales)


def _angles(rotation: Rotation | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    assert rotation is None or isinstance(rotation, Positions), "its operations are those of GPUs"
    return None if rotation is None else (rotation.table, rotation.positions)
