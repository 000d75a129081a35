"""Latent attention on GPUs: flashinfer's kernels, over rows that lie in the pool as they are attended to.

All heads of a token read one row, whose beginning is also the value (absorbed latents, DeepSeek-V2, 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from flashinfer.mla import BatchMLAPagedAttentionWrapper

from engine.core.batch.block_tables import BlockTables
from engine.core.batch.decode_plan import Decodes
from engine.core.batch.step_inputs import Ints
from engine.device.staging import Staging
from engine.kernels.attention.decode_attention import NewTokens
from engine.kernels.attention.latent_store import store_latents
from engine.kernels.flashinfer.libraries import Kernel, LatentLibrary, LatentShape, build_libraries, kernel_of
from engine.kv.cache.pool import KVPool, latents
from engine.mixers.attention.flashinfer.chunk_parts import ChunkPart, chunk_parts
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.ops.ops import Rotation

_WORKSPACE_BYTES: Final = 128 << 20
"""For partial results, as flashinfer recommends."""
_MOST_TILES: Final = 8192
"""Tiles of 64 pairs of a token and a head: a plan has room for 16384 pieces of work, and does not look."""
_TILE_ROWS: Final = 64


def latent_shape(pool: KVPool, rank: int) -> LatentShape:
    """Shape of the pool's rows."""
    return LatentShape(rank, 2 * pool.head_dim - rank)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all plans of a pool share."""

    pool: KVPool
    num_heads: int
    shape: LatentShape
    kernel: Kernel
    partial_results: torch.Tensor
    staging: Staging


class _Planned:
    """One of flashinfer's wrappers with its current plan."""

    def __init__(self, shared: _Shared, rule: LayerAttention) -> None:
        self._shared, self._scale = shared, rule.scale
        self._wrapper = BatchMLAPagedAttentionWrapper(shared.partial_results, backend=shared.kernel.value)
        # A plan is copied to the device from host memory of the wrapper's, which the next plan overwrites.
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan(self, query_indptr: Ints, context_lens: Ints, tables: BlockTables, pages: torch.Tensor) -> None:
        """`pages`: those of `tables`, on the device. A captured run reads them again from there."""
        shared, arrays = self._shared, (query_indptr, tables.indptr, context_lens)
        # The wrapper copies these too, and a copy from pageable memory would wait for the device.
        host, ints = shared.staging.take(sum(map(len, arrays)))
        np.concatenate(arrays, out=ints, casting="same_kind")
        queries, starts, lengths = torch.split(host, [len(array) for array in arrays])
        self._copied.synchronize()
        self._wrapper.plan(
            queries,
            starts,
            pages,
            lengths,
            shared.num_heads,
            *shared.shape,
            shared.pool.page_size,
            True,  # causal
            self._scale,
            shared.pool.dtype,
            shared.pool.dtype,
        )
        self._copied.record()

    def run(self, q: torch.Tensor, pages: torch.Tensor, out: torch.Tensor) -> None:
        """Attend with q `[T, heads, row]` to one layer of the pool; into `out` `[T, heads, rank]`."""
        rank, rows = self._shared.shape.rank, latents(pages)
        self._wrapper.run(q[..., :rank], q[..., rank:], rows[..., :rank], rows[..., rank:], out=out)


class LatentKernels:
    """For a pool of latents. `AttentionKernels` of the GPU backend."""

    def __init__(self, pool: KVPool, num_heads: int, rank: int) -> None:
        device, shape = pool.tensor.device, latent_shape(pool, rank)
        kernel = kernel_of(device)
        build_libraries([LatentLibrary(kernel, pool.dtype, shape)], lambda said: None)
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._shared = _Shared(pool, num_heads, shape, kernel, workspace, Staging(torch.int32, device))

    @property
    def value_dim(self) -> int:
        return self._shared.shape.rank

    def chunks(self, rule: LayerAttention) -> _Chunks:
        return _Chunks(self._shared, rule)

    def decodes(self, rule: LayerAttention) -> _Decodes:
        return _Decodes(self._shared, rule)

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
        store_latents(rows[:, -1], latents(self._shared.pool.layer(layer)), slots)
        if queries.data_ptr() != rows.data_ptr():
            queries.copy_(rows[:, :-1])


class _Decodes:
    """Decodes of all layers: see `DecodeAttention`. There are no sinks, and no scales."""

    def __init__(self, shared: _Shared, rule: LayerAttention) -> None:
        self._shared = shared
        self._planned = _Planned(shared, rule)
        self._graph_pages = torch.empty(0, dtype=torch.int32)

    def init_graphs(self, max_requests: int, max_pages: int, num_tables: int) -> None:
        assert num_tables == 1, "all layers with latents are of one group"
        device = self._shared.pool.tensor.device
        self._graph_pages = torch.zeros(max_pages, dtype=torch.int32, device=device)

    def plan(self, decodes: Sequence[Decodes]) -> None:
        [only] = decodes
        [pages] = self._shared.staging.send([only.block_tables.pages])
        self._plan(only, pages)

    def plan_for_graph(self, decodes: Sequence[Decodes]) -> None:
        [only] = decodes
        [pages] = self._shared.staging.send([only.block_tables.pages])
        self._graph_pages[: len(pages)].copy_(pages)
        self._plan(only, self._graph_pages)

    def run(
        self,
        table: int,
        q: torch.Tensor,
        pages: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
        scales: tuple[float, float] = (1.0, 1.0),
        new: NewTokens | None = None,
    ) -> None:
        assert new is None, "a kernel of its own stores latents"
        self._planned.run(q, pages, out)

    def _plan(self, decodes: Decodes, pages: torch.Tensor) -> None:
        rows = np.arange(len(decodes.context_lens) + 1)
        self._planned.plan(rows, decodes.context_lens, decodes.block_tables, pages)


class _Chunks:
    """Prompt chunks of all layers: see `ChunkAttention`. There are no sinks, and no scales."""

    def __init__(self, shared: _Shared, rule: LayerAttention) -> None:
        self._shared, self._rule = shared, rule
        self._plans: list[_Planned] = []
        """For the parts of the largest step so far."""
        self._parts: list[ChunkPart] = []

    def prepare(self, query_indptr: Ints, context_lens: Ints, block_tables: Sequence[BlockTables]) -> None:
        [tables] = block_tables
        most_rows = max(1, _MOST_TILES * _TILE_ROWS // self._shared.num_heads)
        self._parts = chunk_parts(query_indptr, context_lens, most_rows)
        while len(self._plans) < len(self._parts):
            self._plans.append(_Planned(self._shared, self._rule))
        for part, planned in zip(self._parts, self._plans, strict=False):
            own = tables.part(part.first, part.end)
            [pages] = self._shared.staging.send([own.pages])
            planned.plan(part.query_indptr, part.context_lens, own, pages)

    def run(
        self,
        table: int,
        q: torch.Tensor,
        pages: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
        scales: tuple[float, float],
    ) -> None:
        for part, planned in zip(self._parts, self._plans, strict=False):
            planned.run(q[part.rows], pages, out[part.rows])
