"""Attention on NVIDIA GPUs.

A mixed batch takes two kernels: flashinfer's (FA3 on Hopper) for prompt chunks, and our own for decodes,
which are bound by reading their contexts. One kernel for all rows is slower than the two in sequence.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.attention.flashinfer_chunks import ChunkAttention
from engine.attention.flashinfer_kernels import Heads
from engine.attention.paged_decodes import DecodeAttention
from engine.batch.batch import Batch
from engine.batch.block_tables import BlockTables
from engine.batch.decode_plan import Decodes
from engine.kernels.rotate_store import rotate_store
from engine.kv_cache.pool import KVPool
from engine.layers.flashinfer_ops import Positions
from engine.layers.ops import Rotation

__all__ = ["FlashInferAttention"]


class FlashInferAttention:
    def __init__(self, pool: KVPool, num_heads: int, *, max_requests: int) -> None:
        self._pool = pool
        self._num_heads = num_heads
        device = pool.tensor.device
        heads = Heads(num_heads, pool.num_kv_heads, pool.head_dim)
        self._chunks = ChunkAttention(pool, heads)
        self._decodes = DecodeAttention(heads, pool.page_size, device, max_requests=max_requests)
        self._num_chunk_rows = 0
        self._num_decodes = 0
        self._slots = torch.empty(0, dtype=torch.int64, device=device)
        self._graph_ints = torch.empty(0, dtype=torch.int32, device=device)
        self._graph_slots = torch.empty(0, dtype=torch.int64, device=device)

    def prepare(self, batch: Batch) -> None:
        n = batch.num_chunks
        self._num_chunk_rows = int(batch.query_indptr[n])
        self._num_decodes = batch.num_requests - n
        self._slots = batch.slot_mapping
        if n:
            lists = batch.block_tables.part(0, n)
            self._chunks.prepare(batch.query_indptr[: n + 1], batch.context_lens[:n], lists)
        if self._num_decodes:
            self._decodes.plan(
                Decodes(batch.context_lens[n:], batch.block_tables.part(n, batch.num_requests))
            )

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
        rotate_store(qkv, angles, self._pool.layer(layer), slots, queries)

    def attend(self, layer: int, queries: torch.Tensor, out: torch.Tensor) -> None:
        pages, rows = self._pool.layer(layer), self._num_chunk_rows
        if rows:
            self._chunks.run(queries[:rows], pages, out[:rows])
        if self._num_decodes:
            self._decodes.run(queries[rows:], pages, out[rows:])

    # -------------------------------------------------------------------------------------- graphs

    def init_graphs(self, max_batch: int, max_model_len: int) -> None:
        device = self._pool.tensor.device
        pages = max_batch * -(-max_model_len // self._pool.page_size)
        # One buffer for graphs of all sizes; each size has its own layout.
        size = self._decodes.ints_for(max_batch, pages)
        self._graph_ints = torch.zeros(size, dtype=torch.int32, device=device)
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
        self._decodes.plan_into(self._graph_ints, decodes)
        self._num_chunk_rows = 0
        self._num_decodes = len(decodes.context_lens)
        self._slots = self._graph_slots[: self._num_decodes]

    @property
    def _scratch_slot(self) -> int:
        return self._pool.scratch_page * self._pool.page_size
