"""Decode steps as CUDA graphs: one launch instead of some four hundred.

A graph is captured for each of a few batch sizes; a batch is padded to the next. Padding rows read and write
the pool's scratch page, and their results are ignored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch

from common.progress import Progress
from engine.core.batch.batch import Batch
from engine.executor.forward import Enqueuing
from engine.executor.graphs.gemm_autotune import faster_library, sample_weights
from engine.executor.graphs.graph_rows import GraphRows
from engine.mixers.attention.base import GraphableAttention
from engine.modeling.models.base import CausalLM

GRAPH_BYTES: Final = 1 << 30
"""Upper bound of the memory of all graphs: activations of the largest step, and the graphs' nodes."""


def graph_sizes(largest: int) -> list[int]:
    """Batch sizes worth a graph: closer together where a padding row costs a larger part of the step.

    A lone request that verifies a few drafts has one of its own: the host does not wait to pad it.
    """
    sizes = [*range(1, 8), *range(8, 64, 8), *range(64, 256, 16), *range(256, largest, 32), largest]
    return sorted({size for size in sizes if size <= largest})


class _Key(NamedTuple):
    size: int
    adapted: bool
    """Whether a row has an adapter: without one, a graph has none of their kernels."""


class DecodeGraphs:
    """Captured forward passes of decode batches, all in one memory pool: one for each size, and for models
    that take adapters two. A `Forward`."""

    def __init__(
        self,
        model: CausalLM,
        attention: GraphableAttention,
        *,
        largest: int,
        num_groups: int,
        scratch_slot: int,
        max_model_len: int,
        device: torch.device,
        progress: Progress,
    ) -> None:
        """Capture a graph for every size. Takes about a quarter of a second each.

        `num_groups`: of the model's layers. `scratch_slot`: where padding rows write their keys and values.
        """
        self._model = model
        self._attention = attention
        self._sizes = graph_sizes(largest)
        self._rows = GraphRows(
            num_groups=num_groups,
            largest=largest,
            scratch_slot=scratch_slot,
            device=device,
            adapters=model.adapter_rows is not None,
        )
        self._graphs: dict[_Key, torch.cuda.CUDAGraph] = {}
        self._hidden: dict[_Key, torch.Tensor] = {}
        attention.init_graphs(largest, max_model_len)
        self._capture(reversed(self._sizes), device, progress)

    def fits(self, num_chunks: int, num_rows: int) -> bool:
        return not num_chunks and num_rows <= self._sizes[-1]

    def place(self, num_rows: int) -> torch.Tensor:
        return self._rows.place(self._size_for(num_rows))

    def prepare(self, batch: Batch) -> None:
        self._attention.prepare_replay(batch, self._size_for(batch.num_rows))
        self._model.expect(batch.num_rows)

    def run(self, batch: Batch) -> Enqueuing:
        """Hidden states [B, hidden] of a batch of decodes, padding rows last; valid until the next run."""
        key = _Key(self._size_for(batch.num_rows), batch.adapted)
        self._graphs[key].replay()
        yield
        return self._hidden[key]

    def _size_for(self, num_rows: int) -> int:
        return self._sizes[bisect_left(self._sizes, num_rows)]

    def _capture(self, sizes: Iterable[int], device: torch.device, progress: Progress) -> None:
        """Largest first, so that smaller graphs reuse its memory pool."""
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        weights = sample_weights(self._model)
        kinds = (False,) if self._model.adapter_rows is None else (False, True)
        for done, size in enumerate(sizes):
            progress("Capturing CUDA graphs", done, len(self._sizes))
            for key in (_Key(size, adapted) for adapted in kinds):
                with faster_library(weights, rows=size):
                    self._graphs[key] = self._captured(key, pool, stream)
                self._graphs[key].replay()  # the first replay uploads the graph, which is slow
        progress("Capturing CUDA graphs", len(self._sizes), len(self._sizes))

    def _captured(self, key: _Key, pool: Any, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        rows = self._rows.padding(key.size)
        self._attention.prepare_capture(self._rows.slots(rows))
        self._model.expect(key.size)
        self._model.adapt(rows if key.adapted else None)
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            self._forward(rows)  # load all kernels: loading is not allowed during capture
        torch.cuda.current_stream(stream.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may call CUDA meanwhile, such as a KV transport that registers memory.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._hidden[key] = self._forward(rows)
        return graph

    def _forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self._model(rows[0], rows[1], self._attention)
        return hidden
