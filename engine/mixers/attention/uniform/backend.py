"""Attention on NVIDIA GPUs whose results for a token do not depend on the step: see uniform_attention.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch

from engine.core.batch.batch import Batch, GroupTables
from engine.core.batch.step_inputs import Ints
from engine.device.small_copies import copy
from engine.device.staging import Staging
from engine.kernels.attention.rotate_store import rotate_store
from engine.kernels.attention.uniform_attention import ITEM, SPLIT, Partials, Tile, attend
from engine.kv.cache.pool import KVPool
from engine.mixers.attention.uniform.planner import Contexts, Queries, num_slots, plan_items
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.ops.flashinfer_ops import Positions
from engine.modeling.layers.ops.ops import Rotation

_WHOLE: Final = Tile(128, 8, 3, two_phases=True)
"""Many prompt tokens: their keys are read by fewer tiles."""
_PARTED: Final = Tile(64, 4, 3, parted=True)
_BLOCKS_PER_MULTIPROCESSOR: Final = 2
_WAVES: Final = 2
"""A step's contexts are divided into as many items as fill the GPU this many times."""


@dataclass(slots=True)
class _Work:
    """Items of the layers that attend by one window to one group's pages."""

    group: int
    window: int | None
    chunks: torch.Tensor | None = None
    """[P, ITEM]"""
    chunk_tile: Tile = _WHOLE
    decodes: torch.Tensor | None = None
    chunk_table: torch.Tensor | None = None
    decode_table: torch.Tensor | None = None
    for_graphs: torch.Tensor | None = None
    """The items of decodes, and their pages after them, where graphs read them."""


@dataclass(frozen=True, slots=True)
class _Layer:
    work: _Work
    rule: LayerAttention = field(compare=False)


class UniformAttention:
    """A `PiecewiseAttention`. Decodes are divided among thread blocks by splits of the context, chunks by
    tokens; few chunk tokens by both."""

    def __init__(
        self,
        pool: KVPool,
        num_heads: int,
        layers: Sequence[LayerAttention],
        *,
        max_requests: int,
        max_context: int,
    ) -> None:
        self._pool = pool
        self._num_heads = num_heads
        self._group = num_heads // pool.num_kv_heads
        device = pool.tensor.device
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        at_once = -(-_BLOCKS_PER_MULTIPROCESSOR * multiprocessors // pool.num_kv_heads)
        self._room = _WAVES * at_once
        slots = max_requests * -(-max_context // SPLIT)
        self._partials = Partials(
            torch.empty((slots, num_heads, pool.head_dim), dtype=torch.float32, device=device),
            torch.empty((slots, num_heads, 2), dtype=torch.float32, device=device),
            torch.zeros((slots, pool.num_kv_heads), dtype=torch.int32, device=device),
        )
        works: dict[tuple[int, int | None], _Work] = {}
        self._layers = [
            _Layer(works.setdefault((group, rule.window), _Work(group, rule.window)), rule)
            for (group, _), rule in zip(pool.places, layers, strict=True)
        ]
        self._works = list(works.values())
        self._staging = Staging(torch.int32, device)
        self._num_chunk_rows = 0
        self._slots: list[torch.Tensor] = []
        """For each group: where keys and values go."""

    def prepare(self, batch: Batch) -> None:
        n = batch.num_chunks
        self._num_chunk_rows = int(batch.query_indptr[n])
        self._slots = [group.slot_mapping for group in batch.groups]
        queries = _queries(batch, slice(0, n))
        whole = self._many(queries) or num_slots(queries, split=SPLIT, window=None) > len(self._partials.sums)
        for work in self._works:
            group = batch.groups[work.group]
            work.chunks = work.decodes = None
            if n:
                items = self._items(queries, _contexts(batch, group, slice(0, n)), work, parted=not whole)
                pages = group.block_tables.part(0, n).pages
                work.chunk_tile = _WHOLE if whole else _PARTED
                work.chunks, work.chunk_table = self._staging.send([items, pages])
            if batch.num_requests > n:
                items, pages = self._decode_items(batch, group, work, n)
                work.decodes, work.decode_table = self._staging.send([items, pages])

    def forward(self, layer: int, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        queries = qkv[:, : self._num_heads]
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        self.store(layer, qkv, rotation, self._slots[self._layers[layer].work.group], queries)
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
        work, rows = self._layers[layer].work, self._num_chunk_rows
        if work.chunks is not None and work.chunk_table is not None:
            self._attend(layer, queries, out, work.chunks, work.chunk_table, work.chunk_tile)
        if work.decodes is not None and work.decode_table is not None:
            self._attend(layer, queries[rows:], out[rows:], work.decodes, work.decode_table, _PARTED)

    def _attend(
        self,
        layer: int,
        queries: torch.Tensor,
        out: torch.Tensor,
        items: torch.Tensor,
        table: torch.Tensor,
        tile: Tile,
    ) -> None:
        rule = self._layers[layer].rule
        attend(
            queries,
            self._pool.layer(layer),
            items,
            table,
            self._partials,
            out,
            tile=tile,
            scale=rule.scale,
            window=rule.window,
            soft_cap=rule.soft_cap,
            sinks=rule.sinks,
        )

    def _many(self, queries: Queries) -> bool:
        """Whether there are enough tiles to fill the GPU without dividing them."""
        return len(queries.owners(_WHOLE.rows // self._group)) * _WAVES >= self._room

    def _items(self, queries: Queries, contexts: Contexts, work: _Work, *, parted: bool) -> Ints:
        tile = _PARTED if parted else _WHOLE
        return plan_items(
            queries,
            contexts,
            tile_tokens=tile.rows // self._group,
            split=SPLIT,
            window=work.window,
            most_parts=self._room if parted else None,
        )

    def _decode_items(self, batch: Batch, group: GroupTables, work: _Work, n: int) -> tuple[Ints, Ints]:
        """Items of the requests from `n` on, and their pages."""
        part = slice(n, batch.num_requests)
        queries = _queries(batch, part)
        queries = replace(queries, rows=queries.rows - self._num_chunk_rows)
        items = self._items(queries, _contexts(batch, group, part), work, parted=True)
        return items, group.block_tables.part(n, batch.num_requests).pages

    # -------------------------------------------------------------------------------------- graphs

    def init_graphs(self, max_batch: int, max_model_len: int) -> None:
        pages = max_batch * -(-max_model_len // self._pool.page_size)
        ints = self._graph_items(max_batch) * ITEM + pages
        for work in self._works:
            work.for_graphs = torch.zeros(ints, dtype=torch.int32, device=self._pool.tensor.device)

    def prepare_capture(self, slots: torch.Tensor) -> None:
        self._num_chunk_rows = 0
        self._slots = [*slots]
        for work in self._works:
            self._use_graph(work, slots.shape[1])
            assert work.decodes is not None
            work.decodes.zero_()

    def prepare_replay(self, batch: Batch, batch_size: int) -> None:
        self._num_chunk_rows = 0
        for work in self._works:
            ints = self._use_graph(work, batch_size)
            items, pages = self._decode_items(batch, batch.groups[work.group], work, 0)
            first = self._graph_items(batch_size) * ITEM
            packed, into = self._staging.take(first + len(pages))
            into[: items.size] = items.reshape(-1)
            into[items.size : first] = 0
            into[first:] = pages
            copy(ints[: len(packed)], packed)

    def _use_graph(self, work: _Work, batch_size: int) -> torch.Tensor:
        """Point `attend` at the memory that graphs of this size read."""
        ints, count = work.for_graphs, self._graph_items(batch_size)
        assert ints is not None, "init_graphs has allocated it"
        work.chunks = None
        work.decodes = ints[: count * ITEM].view(count, ITEM)
        work.decode_table = ints[count * ITEM :]
        return ints

    def _graph_items(self, batch_size: int) -> int:
        """Items of this many decodes at most."""
        return batch_size + self._room


def _queries(batch: Batch, part: slice) -> Queries:
    rows = batch.query_indptr[:-1][part]
    lengths = np.diff(batch.query_indptr)[part]
    return Queries(rows, lengths, batch.context_lens[part] - lengths)


def _contexts(batch: Batch, group: GroupTables, part: slice) -> Contexts:
    first = group.block_tables.indptr[:-1][part]
    return Contexts(first - first[:1], (batch.context_lens - group.context_lens)[part])
