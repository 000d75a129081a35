"""Kernels for latent attention on GPUs: what the backend runs in place of those for keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.core.batch.block_tables import BlockTables, starts_of
from engine.core.batch.decode_plan import DecodePlan
from engine.core.batch.step_inputs import Ints
from engine.device.staging import send
from engine.kernels.attention.decode_attention import DecodeWorkspace, NewTokens
from engine.kernels.attention.latent_attention import (
    CHUNK_ROWS,
    ChunkPlan,
    LatentShape,
    attend_chunks,
    attend_decodes,
    decode_blocks,
)
from engine.kernels.attention.latent_store import store_latents
from engine.kv.cache.pool import KVPool
from engine.mixers.attention.decode_planner import DecodePlanner
from engine.mixers.attention.paged_decodes import DecodeKernel
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.ops.ops import Rotation

_PLANNED_AS: int = 2
"""A multiprocessor holds two thread blocks of a decode, half as many as of those for keys and values."""


def latent_shape(pool: KVPool, rank: int) -> LatentShape:
    """Shape of the pool's rows, which are stored in two halves."""
    return LatentShape(rank, 2 * pool.head_dim - rank)


class LatentKernels:
    """For a pool of latents. `AttentionKernels` of the GPU backend."""

    def __init__(self, pool: KVPool, num_heads: int, rank: int, *, max_requests: int) -> None:
        self._pool = pool
        self._shape = latent_shape(pool, rank)
        self._num_heads = num_heads
        device = pool.tensor.device
        self.planner = DecodePlanner(
            multiprocessors=torch.cuda.get_device_properties(device).multi_processor_count,
            num_kv_heads=_PLANNED_AS * decode_blocks(num_heads),
            page_size=pool.page_size,
        )
        parts = self.planner.most_parts(max_requests)
        self._workspace = DecodeWorkspace(parts, max_requests, num_heads, 1, rank, device)

    @property
    def value_dim(self) -> int:
        return self._shape.rank

    def chunks(self, rule: LayerAttention) -> _Chunks:
        return _Chunks(self._pool, self._shape, self._num_heads, rule)

    def decodes(self, rule: LayerAttention) -> DecodeKernel:
        return _Decodes(self._shape, self._workspace, rule)

    def new_tokens(self, layer: int, rotation: Rotation | None) -> None:
        return None

    def store(
        self,
        layer: int,
        rows: torch.Tensor,
        rotation: Rotation | None,
        slots: torch.Tensor,
        queries: torch.Tensor,
    ) -> None:
        assert rotation is None, "latents and their queries are rotated where they are projected"
        store_latents(rows[:, -1], self._pool.layer(layer), slots)
        if queries.data_ptr() != rows.data_ptr():
            queries.copy_(rows[:, :-1])


class _Decodes:
    """A `DecodeKernel`."""

    def __init__(self, shape: LatentShape, workspace: DecodeWorkspace, rule: LayerAttention) -> None:
        self._shape = shape
        self._workspace = workspace
        self._scale = rule.scale

    def __call__(
        self,
        q: torch.Tensor,
        pages: torch.Tensor,
        plan: DecodePlan[torch.Tensor],
        out: torch.Tensor,
        sinks: torch.Tensor | None,
        scales: tuple[float, float],
        new: NewTokens | None,
    ) -> None:
        assert new is None, "a kernel of its own stores latents"
        attend_decodes(q, pages, plan, self._workspace, out, shape=self._shape, scale=self._scale)


class _Chunks:
    """Prompt chunks of all layers: planned once per step."""

    def __init__(self, pool: KVPool, shape: LatentShape, num_heads: int, rule: LayerAttention) -> None:
        self._pool = pool
        self._shape = shape
        self._num_heads = num_heads
        self._scale = rule.scale
        self._plans: list[ChunkPlan] = []

    def prepare(self, query_indptr: Ints, context_lens: Ints, block_tables: Sequence[BlockTables]) -> None:
        """Plan a step of chunks; arrays as in Batch and GroupTables, for the chunks only."""
        owners, indices = _row_blocks(np.diff(query_indptr), context_lens, self._num_heads)
        first = block_tables[0]
        last_fills = context_lens - (first.counts - 1) * self._pool.page_size
        shared = [owners, indices, query_indptr, first.indptr, last_fills]
        arrays = [*shared, *(tables.pages for tables in block_tables)]
        sent = send([array.astype(np.int32) for array in arrays], self._pool.tensor.device)
        self._plans = [ChunkPlan._make([*sent[: len(shared)], pages]) for pages in sent[len(shared) :]]

    def run(
        self,
        table: int,
        q: torch.Tensor,
        pages: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
        scales: tuple[float, float],
    ) -> None:
        """As `ChunkAttention.run`; there are no sinks, and no scales."""
        attend_chunks(q, pages, self._plans[table], out, shape=self._shape, scale=self._scale)


def _row_blocks(lengths: Ints, context_lens: Ints, heads: int) -> tuple[Ints, Ints]:
    """The chunk of each thread block, and its number there: those with the longest contexts first."""
    counts = -(-lengths * heads // CHUNK_ROWS)
    owners = np.repeat(np.arange(len(lengths)), counts)
    indices = np.arange(len(owners)) - starts_of(counts)[owners]
    last_tokens = np.minimum((indices + 1) * CHUNK_ROWS // heads, lengths[owners])
    order = np.argsort(-(context_lens - lengths)[owners] - last_tokens, kind="stable")
    return owners[order], indices[order]
