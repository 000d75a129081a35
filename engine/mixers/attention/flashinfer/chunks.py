"""Attention of prompt chunks, over pages or over a contiguous copy of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from engine.core.batch.block_tables import BlockTables, starts_of
from engine.core.batch.step_inputs import Ints
from engine.device.staging import Staging
from engine.kernels.attention.gather import gather_kv
from engine.kernels.flashinfer.libraries import Kernel
from engine.kv.cache.pool import KVPool
from engine.mixers.attention.flashinfer.kernel_choice import splits_contexts
from engine.mixers.attention.flashinfer.kernels import (
    Heads,
    PagedKernel,
    Ragged,
    RaggedKernel,
    Tables,
)
from engine.modeling.layers.layer_attention import LayerAttention

_MIN_WORKSPACE: Final = 128 << 20
_LN_2: Final = math.log(2)
_FA2_ROWS: Final = 128
"""Largest query tile of an FA2 thread block."""
_GATHERED_BYTES: Final = 512 << 20
"""Largest copy of one layer's keys and values; a step that needs more reads pages instead."""
_WORTH_A_COPY: Final = 700
"""Keys and values are copied if this many queries read each of them, on average over the step."""


@dataclass(frozen=True, slots=True)
class _Gathering:
    """Where each page goes in the copy, and how many of its tokens are copied."""

    sources: list[torch.Tensor]
    """For each table."""
    fills: torch.Tensor
    num_rows: int


class ChunkWorkspace:
    """Memory that all layers of a pool share, one after another."""

    def __init__(self, pool: KVPool, heads: Heads) -> None:
        dtype, device = pool.dtype, pool.tensor.device
        self.hopper = torch.cuda.get_device_capability(device) == (9, 0)
        # FA3 reads pages of 8 bits only with queries of 8 bits.
        self.pages_by_fa3 = self.hopper and pool.fp8 is None
        self.multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        # FA2 splits contexts as long as all parts fit into two thread blocks per multiprocessor.
        rows = 2 * self.multiprocessors * heads.query // heads.kv * _FA2_ROWS
        partial_results = max(rows * (heads.dim + 1) * 4, _MIN_WORKSPACE)
        self.partial_results = torch.empty(partial_results, dtype=torch.uint8, device=device)
        row_bytes = 2 * pool.num_kv_heads * pool.head_dim * dtype.itemsize
        max_rows = _GATHERED_BYTES // row_bytes if self.hopper else 0
        self.copy = torch.empty((2, max_rows, pool.num_kv_heads, pool.head_dim), dtype=dtype, device=device)


class ChunkAttention:
    """Chunk attention of the layers that attend by one rule."""

    def __init__(self, pool: KVPool, heads: Heads, workspace: ChunkWorkspace, rule: LayerAttention) -> None:
        """`rule`: without sinks."""
        self._pool = pool
        self._num_heads = heads.query
        self._multiprocessors = workspace.multiprocessors
        self._copy = workspace.copy

        def paged(kernel: Kernel) -> PagedKernel:
            dtypes = pool.dtype, pool.tensor.dtype
            return PagedKernel(kernel, heads, pool.page_size, dtypes, workspace.partial_results, rule)

        self._split = paged(Kernel.FA2)
        self._paged = self._whole = paged(Kernel.FA3) if workspace.pages_by_fa3 else self._split
        # FA3 loads rows in bulk but has to collect pages token by token. FA2 does the same for both, and
        # would take the padding of a copy for context: without FA3 there are no copies.
        self._ragged: RaggedKernel | None = None
        if workspace.hopper:
            dtypes = pool.dtype, pool.dtype
            self._ragged = RaggedKernel(Kernel.FA3, heads, 1, dtypes, workspace.partial_results, rule)
        self._staging = Staging(torch.int32, pool.tensor.device)
        self._gathering: _Gathering | None = None
        self._tables: list[Tables] = []

    def prepare(self, query_indptr: Ints, context_lens: Ints, block_tables: Sequence[BlockTables]) -> None:
        """Plan a step of chunks; arrays as in Batch and GroupTables, for the chunks only.

        `block_tables` differ in their pages alone: layers of several groups attend by the same rule.
        """
        lengths = np.diff(query_indptr)
        if splits_contexts(lengths, context_lens, self._num_heads, self._multiprocessors):
            self._paged = self._split
            self._plan_pages(query_indptr, context_lens, block_tables)
            return
        self._paged = self._whole
        padded = -(-(context_lens + RaggedKernel.TILE) // self._pool.page_size)
        num_rows = int(padded.sum()) * self._pool.page_size
        readers = float(lengths @ context_lens) / float(context_lens.sum())
        if self._ragged and num_rows <= self._copy.shape[1] and readers >= _WORTH_A_COPY:
            self._plan_copy(self._ragged, query_indptr, context_lens, block_tables, padded)
        else:
            self._plan_pages(query_indptr, context_lens, block_tables)

    def run(
        self,
        table: int,
        q: torch.Tensor,
        pages: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Attend with all rows of the chunks, `[T, heads, dim]`, to one layer of the pool.

        `table`: which of the prepared ones has the layer's pages. `sinks` [heads] float32 scale the result by
        the share of the tokens in the softmax. `scales`: of the stored keys and values.
        """
        lse = None if sinks is None else torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        if self._gathering is None or self._ragged is None:
            self._paged.run(self._tables[table], q, pages, out, lse, key_scale=scales[0])
        else:
            rows = self._copy[:, : self._gathering.num_rows]
            gather_kv(pages, self._gathering.sources[table], self._gathering.fills, rows)
            self._ragged.run(q, rows[0], rows[1], out, lse, key_scale=scales[0])
        if scales[1] != 1.0:
            out.mul_(scales[1])
        if lse is not None and sinks is not None:
            out.mul_(torch.sigmoid(lse * _LN_2 - sinks).unsqueeze(-1))

    def _plan_pages(
        self, query_indptr: Ints, context_lens: Ints, block_tables: Sequence[BlockTables]
    ) -> None:
        first = block_tables[0]
        batch = Ragged(_int32(query_indptr), _int32(first.indptr), _int32(context_lens))
        last_fills = context_lens - (first.counts - 1) * self._pool.page_size
        query_rows, kv_rows, fills, *sent = self._staging.send(
            [batch.query_indptr, batch.kv_indptr, last_fills, *(tables.pages for tables in block_tables)]
        )
        self._paged.plan(batch)
        self._tables = [Tables(query_rows, kv_rows, of_group, fills) for of_group in sent]
        self._gathering = None

    def _plan_copy(
        self,
        ragged: RaggedKernel,
        query_indptr: Ints,
        context_lens: Ints,
        block_tables: Sequence[BlockTables],
        padded: Ints,
    ) -> None:
        page_size = self._pool.page_size
        first = starts_of(padded)
        owner = np.repeat(np.arange(len(padded)), padded)
        index = np.arange(first[-1]) - first[owner]
        fills = np.clip(context_lens[owner] - index * page_size, 0, page_size)
        at = block_tables[0].indptr[owner] + np.where(fills > 0, index, 0)
        sources = [tables.pages[at] for tables in block_tables]
        batch = Ragged(_int32(query_indptr), _int32(first * page_size), _int32(context_lens))
        query_rows, kv_rows, sent_fills, *sent = self._staging.send(
            [batch.query_indptr, batch.kv_indptr, fills, *sources]
        )
        ragged.plan(batch, query_rows, kv_rows)
        self._gathering = _Gathering(sent, sent_fills, int(first[-1]) * page_size)


def _int32(array: Ints) -> npt.NDArray[np.int32]:
    return array.astype(np.int32)
