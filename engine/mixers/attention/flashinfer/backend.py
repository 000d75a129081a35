"""Attention on NVIDIA GPUs.

A mixed batch takes two kernels: one for prompt chunks, and one for decodes, which are bound by reading their
contexts. The second is our own for keys and values, and flashinfer's for latents. One kernel for all rows is
slower than the two in sequence. Windows, soft caps and scales are the kernels'; sinks are added to the
divisor of each result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from engine.core.batch.batch import Batch
from engine.core.batch.block_tables import BlockTables
from engine.core.batch.decode_plan import Decodes
from engine.core.batch.step_inputs import Ints
from engine.kernels.attention.decode_attention import NewTokens
from engine.kv.cache.pool import KVPool
from engine.mixers.attention.flashinfer.latent_kernels import LatentKernels
from engine.mixers.attention.flashinfer.paged_kernels import PagedKernels
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.ops.ops import Rotation


class _Chunks(Protocol):
    """Attention of prompt chunks, for the layers that attend by one rule: see `ChunkAttention`."""

    def prepare(
        self, query_indptr: Ints, context_lens: Ints, block_tables: Sequence[BlockTables]
    ) -> None: ...

    def run(
        self,
        table: int,
        q: torch.Tensor,
        pages: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
        scales: tuple[float, float],
    ) -> None: ...


class _Decodes(Protocol):
    """Attention of decodes, for the layers that attend by one rule: see `DecodeAttention`."""

    def init_graphs(self, max_requests: int, max_pages: int, num_tables: int) -> None: ...

    def plan(self, decodes: Sequence[Decodes]) -> None: ...

    def plan_for_graph(self, decodes: Sequence[Decodes]) -> None: ...

    def run(
        self,
        table: int,
        q: torch.Tensor,
        pages: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
        scales: tuple[float, float],
        new: NewTokens | None = None,
    ) -> None: ...


class _AttentionKernels(Protocol):
    """What depends on what the pool stores for a token: keys and values, or latents."""

    @property
    def value_dim(self) -> int:
        """Features of a head's result."""

    def chunks(self, rule: LayerAttention) -> _Chunks: ...

    def decodes(self, rule: LayerAttention) -> _Decodes: ...

    def store(
        self,
        layer: int,
        qkv: torch.Tensor,
        rotation: Rotation | None,
        slots: torch.Tensor,
        queries: torch.Tensor,
    ) -> None:
        """See `PiecewiseAttention.store`."""

    def new_tokens(self, layer: int, rotation: Rotation | None) -> NewTokens | None:
        """What decodes need to store the tokens of a layer themselves; None: they cannot."""


def _kernels(
    pool: KVPool, num_heads: int, rules: Sequence[LayerAttention], max_requests: int
) -> _AttentionKernels:
    rank = rules[0].latent_rank
    if rank is None:
        return PagedKernels(pool, num_heads, max_requests=max_requests)
    return LatentKernels(pool, num_heads, rank)


@dataclass(frozen=True, slots=True)
class _Rule:
    """What layers that attend by the same rule, except for sinks, share in a step."""

    groups: list[int]
    """Numbers of the groups that have such layers: those differ in their pages alone."""
    chunks: _Chunks
    decodes: _Decodes


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
        without_sinks = [replace(layer, sinks=None) for layer in layers]
        self._kernels = _kernels(pool, num_heads, without_sinks, max_requests)
        groups = [group for group, _ in pool.places]
        rules = {
            rule: _Rule(
                sorted({group for group, other in zip(groups, without_sinks, strict=True) if other == rule}),
                self._kernels.chunks(rule),
                self._kernels.decodes(rule),
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
        """For each group: where keys and values go."""

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
        out = queries.new_empty(*queries.shape[:2], self._kernels.value_dim)
        # Rows of one request would read each other's keys before they are stored.
        new = self._kernels.new_tokens(layer, rotation) if len(qkv) == self._num_decodes == 1 else None
        if new is None:
            self.store(layer, qkv, rotation, self._slots[self._layers[layer].group], queries)
            self.attend(layer, queries, out)
        else:
            of = self._layers[layer]
            pages, scales = self._pool.layer(layer), self._scales[layer]
            of.rule.decodes.run(of.table, queries, pages, out, of.sinks, scales, new)
        return out

    def store(
        self,
        layer: int,
        qkv: torch.Tensor,
        rotation: Rotation | None,
        slots: torch.Tensor,
        queries: torch.Tensor,
    ) -> None:
        self._kernels.store(layer, qkv, rotation, slots, queries)

    def attend(self, layer: int, queries: torch.Tensor, out: torch.Tensor) -> None:
        pages, rows = self._pool.layer(layer), self._num_chunk_rows
        of, scales = self._layers[layer], self._scales[layer]
        if rows:
            of.rule.chunks.run(of.table, queries[:rows], pages, out[:rows], of.sinks, scales)
        if self._num_decodes:
            of.rule.decodes.run(of.table, queries[rows:], pages, out[rows:], of.sinks, scales)

    # -------------------------------------------------------------------------------------- graphs

    def init_graphs(self, max_batch: int, max_model_len: int) -> None:
        pages = max_batch * -(-max_model_len // self._pool.page_size)
        for rule in self._rules:
            rule.decodes.init_graphs(max_batch, pages, len(rule.groups))

    def prepare_capture(self, slots: torch.Tensor) -> None:
        none = Decodes(np.empty(0, dtype=np.int64), BlockTables.of([]))
        self._plan_for_graph([none] * len(self._pool.groups), slots.shape[1])
        self._num_chunk_rows = 0
        self._num_decodes = slots.shape[1]
        self._slots = [*slots]

    def prepare_replay(self, batch: Batch, batch_size: int) -> None:
        decodes = [Decodes(group.context_lens, group.block_tables) for group in batch.groups]
        self._plan_for_graph(decodes, batch_size)

    def _plan_for_graph(self, decodes: Sequence[Decodes], batch_size: int) -> None:
        """`decodes`: of each group, at most `batch_size`."""
        missing = batch_size - len(decodes[0].context_lens)
        padded = [of_group.padded(missing, self._pool.scratch_page) for of_group in decodes]
        for rule in self._rules:
            rule.decodes.plan_for_graph([padded[number] for number in rule.groups])
