"""Attention on NVIDIA GPUs, through flashinfer's kernels.

A mixed batch takes two kernels: prompt chunks go through the one that is best at many query rows (FA3 on
Hopper), single tokens through FA2 with the query heads of a key head as its rows, which splits long contexts
among multiprocessors. One call for all would be slower than the two in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.flashinfer_chunks import ChunkAttention, page_counts, used_pages
from engine.attention.flashinfer_kernels import Heads, Kernel, PagedKernel, Ragged, Tables
from engine.batch import Batch, Ints
from engine.kernels.store import store_kv
from engine.kv_pool import KVPool
from engine.staging import send

__all__ = ["FlashInferAttention"]

_QUERY_TILE: Final = 16
"""Rows of the smallest tile of FA2: what a decode occupies, whatever it fills."""
_MIN_WORKSPACE: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class _Graph:
    """The launch that a captured decode graph of one size was made with."""

    tables: Tables
    launch: list[int]


class FlashInferAttention:
    def __init__(self, pool: KVPool, num_heads: int, *, max_requests: int) -> None:
        self._pool = pool
        device, dtype = pool.tensor.device, pool.tensor.dtype
        heads = Heads(num_heads, pool.num_kv_heads, pool.head_dim)
        # Room for the partial results of max_requests decodes, an output tile each and some to split.
        tiles = max_requests + max_requests * num_heads // pool.num_kv_heads // _QUERY_TILE + 64
        needed = num_heads * tiles * _QUERY_TILE * (pool.head_dim + 1) * 4
        workspace = torch.empty(max(needed, _MIN_WORKSPACE), dtype=torch.uint8, device=device)
        hopper = torch.cuda.get_device_capability(device) == (9, 0)
        self._chunks = ChunkAttention(pool, heads, workspace, hopper=hopper)
        self._decodes, self._graph_decodes = (
            PagedKernel(Kernel.FA2, heads, pool.page_size, dtype, workspace, causal=False, in_graph=in_graph)
            for in_graph in (False, True)
        )
        self._active_decodes = self._decodes
        self._num_chunk_rows = 0
        self._num_decodes = 0
        self._slots = torch.empty(0, dtype=torch.int64, device=device)
        self._graphs: dict[int, _Graph] = {}
        self._graph_ints = torch.empty(0, dtype=torch.int32, device=device)
        self._graph_slots = torch.empty(0, dtype=torch.int64, device=device)

    def prepare(self, batch: Batch) -> None:
        n = batch.num_chunks
        self._num_chunk_rows = int(batch.query_indptr[n])
        self._num_decodes = batch.num_requests - n
        self._slots = batch.slot_mapping
        if n:
            self._chunks.prepare(batch.query_indptr[: n + 1], batch.context_lens[:n], batch.block_tables[:n])
        if self._num_decodes:
            shape, last_fills, pages = self._decode_arrays(batch.context_lens[n:], batch.block_tables[n:])
            arrays = [shape.query_indptr, shape.kv_indptr, pages, last_fills]
            self._decodes.plan(shape, Tables(*send(arrays, self._pool.tensor.device)))
        self._active_decodes = self._decodes

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.store(layer, k, v, self._slots)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.attend(layer, q, out)
        return out

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        store_kv(k, v, self._pool.layer(layer), slots)

    def attend(self, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        pages, rows = self._pool.layer(layer), self._num_chunk_rows
        if rows:
            self._chunks.run(q[:rows], pages, out[:rows])
        if self._num_decodes:
            self._active_decodes.run(q[rows:], pages, out[rows:])

    def _decode_arrays(
        self, context_lens: Ints, block_tables: Ints
    ) -> tuple[Ragged, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The shape of a batch of decodes, tokens in each one's last page, and all their pages."""
        used, last_fills = page_counts(context_lens, self._pool.page_size)
        rows = np.arange(len(used) + 1, dtype=np.int32)
        kv_indptr = np.zeros(len(used) + 1, dtype=np.int32)
        np.cumsum(used, out=kv_indptr[1:])
        shape = Ragged(rows, kv_indptr, context_lens.astype(np.int32))
        return shape, last_fills, used_pages(block_tables, used)

    # -------------------------------------------------------------------------------------- graphs

    def init_graphs(self, max_batch: int, max_model_len: int) -> None:
        device = self._pool.tensor.device
        widest = -(-max_model_len // self._pool.page_size)
        # One buffer: for a graph of B decodes, 2 * (B + 1) row ends, B page fills, then the pages.
        size = 3 * (max_batch + 1) + max_batch * widest
        self._graph_ints = torch.zeros(size, dtype=torch.int32, device=device)
        self._graph_slots = torch.full((max_batch,), self._scratch_slot, dtype=torch.int64, device=device)

    def prepare_capture(self, batch_size: int) -> None:
        ones = np.ones(batch_size, dtype=np.int64)
        scratch = np.full((batch_size, 1), self._pool.scratch_page, dtype=np.int64)
        tables = self._fill_graph(ones, scratch, batch_size)
        self._graph_slots.fill_(self._scratch_slot)
        self._graphs[batch_size] = _Graph(tables, self._graph_decodes.launch)
        self._enter_graph(batch_size)

    def prepare_replay(self, batch: Batch, batch_size: int) -> None:
        missing = batch_size - batch.num_requests
        context_lens = np.pad(batch.context_lens, (0, missing), constant_values=1)
        tables = np.pad(batch.block_tables, ((0, missing), (0, 0)), constant_values=self._pool.scratch_page)
        self._fill_graph(context_lens, tables, batch_size)
        if self._graph_decodes.launch != self._graphs[batch_size].launch:
            raise RuntimeError("flashinfer planned another launch than the one that was captured")
        self._graph_slots[: batch.num_requests].copy_(batch.slot_mapping)
        if missing:
            self._graph_slots[batch.num_requests : batch_size].fill_(self._scratch_slot)
        self._enter_graph(batch_size)

    def _fill_graph(self, context_lens: Ints, block_tables: Ints, batch_size: int) -> Tables:
        shape, last_fills, pages = self._decode_arrays(context_lens, block_tables)
        packed = np.concatenate([shape.query_indptr, shape.kv_indptr, last_fills, pages])
        self._graph_ints[: len(packed)].copy_(torch.from_numpy(packed).pin_memory(), non_blocking=True)
        ends = batch_size + 1
        ints = self._graph_ints
        last = ints[2 * ends : 2 * ends + batch_size]
        tables = Tables(ints[:ends], ints[ends : 2 * ends], ints[2 * ends + batch_size :], last)
        self._graph_decodes.plan(shape, tables)
        return tables

    def _enter_graph(self, batch_size: int) -> None:
        self._num_chunk_rows = 0
        self._num_decodes = batch_size
        self._slots = self._graph_slots[:batch_size]
        self._active_decodes = self._graph_decodes

    @property
    def _scratch_slot(self) -> int:
        return self._pool.scratch_page * self._pool.page_size
