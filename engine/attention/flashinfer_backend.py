"""Attention on NVIDIA GPUs.

A mixed batch takes two kernels: flashinfer's (FA3 on Hopper) for prompt chunks, and our own for decodes,
which are bound by reading their contexts. One kernel for all rows is slower than the two in sequence.
Windows, soft caps and scales are the kernels'; sinks are added to the divisor of each result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.attention.decode_planner import DecodePlanner
from engine.attention.flashinfer_chunks import ChunkAttention, ChunkWorkspace
from engine.attention.flashinfer_kernels import Heads
from engine.attention.paged_decodes import DecodeAttention
from engine.batch.batch import Batch
from engine.batch.block_tables import BlockTables
from engine.batch.decode_plan import Decodes
from engine.kernels.decode_attention import DecodeWorkspace
from engine.kernels.rotate_store import rotate_store
from engine.kv_cache.pool import KVPool
from engine.layers.flashinfer_ops import Positions
from engine.layers.layer_attention import LayerAttention
from engine.layers.ops import Rotation

__all__ = ["FlashInferAttention"]


@dataclass(slots=True)
class _Rule:
    """What layers that attend by the same rule, except for sinks, share in a step."""

    chunks: ChunkAttention
    decodes: DecodeAttention
    graph_ints: torch.Tensor
    """Plans of decodes that graphs read."""


class FlashInferAttention:
    def __init__(
        self, pool: KVPool, num_heads: int, layers: Sequence[LayerAttention], *, max_requests: int
    ) -> None:
        self._pool = pool
        self._num_heads = num_heads
        device, page_size = pool.tensor.device, pool.page_size
        heads = Heads(num_heads, pool.num_kv_heads, pool.head_dim)
        chunk_workspace = ChunkWorkspace(pool, heads)
        self._planner = DecodePlanner(
            multiprocessors=chunk_workspace.multiprocessors, num_kv_heads=heads.kv, page_size=page_size
        )
        parts = self._planner.most_parts(max_requests)
        decode_workspace = DecodeWorkspace(parts, max_requests, heads.query, heads.kv, heads.dim, device)
        without_sinks = [replace(layer, sinks=None) for layer in layers]
        self._rules = {
            rule: _Rule(
                ChunkAttention(pool, heads, chunk_workspace, rule),
                DecodeAttention(self._planner, decode_workspace, rule, page_size, device),
                torch.empty(0, dtype=torch.int32, device=device),
            )
            for rule in dict.fromkeys(without_sinks)
        }
        self._layers = [
            (self._rules[rule], layer.sinks) for rule, layer in zip(without_sinks, layers, strict=True)
        ]
        self._scales = pool.fp8.scales if pool.fp8 else [(1.0, 1.0)] * len(layers)
        self._num_chunk_rows = 0
        self._num_decodes = 0
        self._slots = torch.empty(0, dtype=torch.int64, device=device)
        self._graph_slots = torch.empty(0, dtype=torch.int64, device=device)

    def prepare(self, batch: Batch) -> None:
        n = batch.num_chunks
        self._num_chunk_rows = int(batch.query_indptr[n])
        self._num_decodes = batch.num_requests - n
        self._slots = batch.slot_mapping
        if n:
            lists = batch.block_tables.part(0, n)
            for rule in self._rules.values():
                rule.chunks.prepare(batch.query_indptr[: n + 1], batch.context_lens[:n], lists)
        if self._num_decodes:
            decodes = Decodes(batch.context_lens[n:], batch.block_tables.part(n, batch.num_requests))
            for rule in self._rules.values():
                rule.decodes.plan(decodes)

    def forward(self, layer: int, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        queries = qkv[:, : self._num_heads]
        self.store(layer, qkv, rotation, self._slots, queries)
        out = torch.empty(queries.shape, dtype=qkv.dtype, device=qkv.device)
        self.attend(layer, queries, out)
        return out

    def store(
        self,
        layer: int,
        qkv: torch.Tensor,
        rotation: Rotation | None,
        slots: torch.Tensor,
        queries: torch.Tensor,
    ) -> None:
        assert rotation is None or isinstance(rotation, Positions), "its operations are those of GPUs"
        angles = None if rotation is None else (rotation.table, rotation.positions)
        scales = self._scales[layer] if self._pool.fp8 else None
        rotate_store(qkv, angles, self._pool.layer(layer), slots, queries, scales)

    def attend(self, layer: int, queries: torch.Tensor, out: torch.Tensor) -> None:
        pages, rows = self._pool.layer(layer), self._num_chunk_rows
        (rule, sinks), scales = self._layers[layer], self._scales[layer]
        if rows:
            rule.chunks.run(queries[:rows], pages, out[:rows], sinks, scales)
        if self._num_decodes:
            rule.decodes.run(queries[rows:], pages, out[rows:], sinks, scales)

    # -------------------------------------------------------------------------------------- graphs

    def init_graphs(self, max_batch: int, max_model_len: int) -> None:
        device = self._pool.tensor.device
        pages = max_batch * -(-max_model_len // self._pool.page_size)
        # One buffer for graphs of all sizes; each size has its own layout.
        for rule in self._rules.values():
            size = rule.decodes.ints_for(max_batch, pages)
            rule.graph_ints = torch.zeros(size, dtype=torch.int32, device=device)
        self._graph_slots = torch.full((max_batch,), self._scratch_slot, dtype=torch.int64, device=device)

    def prepare_capture(self, batch_size: int) -> None:
        none = Decodes(np.empty(0, dtype=np.int64), BlockTables.of([]))
        self._graph_slots.fill_(self._scratch_slot)
        self._enter_graph(none.padded(batch_size, self._pool.scratch_page))

    def prepare_replay(self, batch: Batch, batch_size: int) -> None:
        n = batch.num_requests
        self._graph_slots[:n].copy_(batch.slot_mapping)
        if n < batch_size:
            self._graph_slots[n:batch_size].fill_(self._scratch_slot)
        decodes = Decodes(batch.context_lens, batch.block_tables)
        self._enter_graph(decodes.padded(batch_size - n, self._pool.scratch_page))

    def _enter_graph(self, decodes: Decodes) -> None:
        for rule in self._rules.values():
            rule.decodes.plan_into(rule.graph_ints, decodes)
        self._num_chunk_rows = 0
        self._num_decodes = len(decodes.context_lens)
        self._slots = self._graph_slots[: self._num_decodes]

    @property
    def _scratch_slot(self) -> int:
        return self._pool.scratch_page * self._pool.page_size
