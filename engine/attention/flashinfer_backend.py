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


@dataclass(frozen=True, slots=True)
class _Rule:
    """What layers that attend by the same rule, except for sinks, share in a step."""

    groups: list[int]
    """Numbers of the groups that have such layers: those differ in their pages alone."""
    chunks: ChunkAttention
    decodes: DecodeAttention


@dataclass(frozen=True, slots=True)
class _Layer:
    group: int
    rule: _Rule
    table: int
    """Index of the group in `rule.groups`."""
    sinks: torch.Tensor | None


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
        groups = [group for group, _ in pool.places]
        rules = {
            rule: _Rule(
                sorted({group for group, other in zip(groups, without_sinks, strict=True) if other == rule}),
                ChunkAttention(pool, heads, chunk_workspace, rule),
                DecodeAttention(self._planner, decode_workspace, rule, device),
            )
            for rule in dict.fromkeys(without_sinks)
        }
        self._rules = list(rules.values())
        self._layers = [
            _Layer(group, rules[rule], rules[rule].groups.index(group), layer.sinks)
            for group, rule, layer in zip(groups, without_sinks, layers, strict=True)
        ]
        self._scales = pool.fp8.scales if pool.fp8 else [(1.0, 1.0)] * len(layers)
        self._num_chunk_rows = 0
        self._num_decodes = 0
        self._slots: list[torch.Tensor] = []
        """Of each group: where keys and values go."""
        self._graph_slots = torch.empty((0, 0), dtype=torch.int64, device=device)

    def prepare(self, batch: Batch) -> None:
        n = batch.num_chunks
        self._num_chunk_rows = int(batch.query_indptr[n])
        self._num_decodes = batch.num_requests - n
        self._slots = [group.slot_mapping for group in batch.groups]
        for rule in self._rules:
            groups = [batch.groups[number] for number in rule.groups]
            lens = groups[0].context_lens
            if n:
                lists = [group.block_tables.part(0, n) for group in groups]
                rule.chunks.prepare(batch.query_indptr[: n + 1], lens[:n], lists)
            if self._num_decodes:
                rest = [group.block_tables.part(n, batch.num_requests) for group in groups]
                rule.decodes.plan([Decodes(lens[n:], tables) for tables in rest])

    def forward(self, layer: int, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        queries = qkv[:, : self._num_heads]
        self.store(layer, qkv, rotation, self._slots[self._layers[layer].group], queries)
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
        of, scales = self._layers[layer], self._scales[layer]
        if rows:
            of.rule.chunks.run(of.table, queries[:rows], pages, out[:rows], of.sinks, scales)
        if self._num_decodes:
            of.rule.decodes.run(of.table, queries[rows:], pages, out[rows:], of.sinks, scales)

    # -------------------------------------------------------------------------------------- graphs

    def init_graphs(self, max_batch: int, max_model_len: int) -> None:
        device = self._pool.tensor.device
        pages = max_batch * -(-max_model_len // self._pool.page_size)
        for rule in self._rules:
            rule.decodes.init_graphs(max_batch, pages, len(rule.groups))
        shape = (len(self._pool.groups), max_batch)
        self._graph_slots = torch.full(shape, self._scratch_slot, dtype=torch.int64, device=device)

    def prepare_capture(self, batch_size: int) -> None:
        none = Decodes(np.empty(0, dtype=np.int64), BlockTables.of([]))
        self._graph_slots.fill_(self._scratch_slot)
        self._enter_graph([none] * len(self._pool.groups), batch_size)

    def prepare_replay(self, batch: Batch, batch_size: int) -> None:
        n = batch.num_requests
        for slots, group in zip(self._graph_slots, batch.groups, strict=True):
            slots[:n].copy_(group.slot_mapping)
        if n < batch_size:
            self._graph_slots[:, n:batch_size].fill_(self._scratch_slot)
        decodes = [Decodes(group.context_lens, group.block_tables) for group in batch.groups]
        self._enter_graph(decodes, batch_size)

    def _enter_graph(self, decodes: Sequence[Decodes], batch_size: int) -> None:
        """`decodes`: of each group, at most `batch_size`."""
        missing = batch_size - len(decodes[0].context_lens)
        padded = [of_group.padded(missing, self._pool.scratch_page) for of_group in decodes]
        for rule in self._rules:
            rule.decodes.plan_for_graph([padded[number] for number in rule.groups])
        self._num_chunk_rows = 0
        self._num_decodes = batch_size
        self._slots = [slots[:batch_size] for slots in self._graph_slots]

    @property
    def _scratch_slot(self) -> int:
        return self._pool.scratch_page * self._pool.page_size
