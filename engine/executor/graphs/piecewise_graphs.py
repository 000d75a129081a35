"""Piecewise CUDA graphs for small mixed steps: one graph for the operations between two attention calls.

Launched kernel by kernel, a mixed step keeps the host busy for ten milliseconds, longer than a few hundred
tokens keep a large GPU busy. Attention is launched eagerly, since it depends on the step's requests; the rest
depends on the number of tokens alone. It is captured for some numbers, to which steps are padded. (As in
vLLM; there a compiler splits the model, here the call to attention does.)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from common.progress import Progress
from engine.core.batch.batch import Batch
from engine.executor.forward import Enqueuing
from engine.executor.graphs.gemm_autotune import faster_library, sample_weights
from engine.executor.graphs.graph_rows import GraphRows
from engine.mixers.attention.base import PiecewiseAttention
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.models.base import CausalLM
from engine.parallel.communicator import Communicator

_GAIN: Final = 0.985
"""A size is kept if it takes less than this part of the next larger size's time."""
_LEAD: Final = 8
"""Layers enqueued at once: they keep the device busy for two or three milliseconds."""
_REPLAYS: Final = 2
"""Replays to time each size."""


def token_sizes(largest: int) -> list[int]:
    """Numbers of tokens worth a chain: closer together where a padding row is a larger part of the step."""
    sizes = [*range(16, 256, 16), *range(256, 512, 32), *range(512, 1024, 64), *range(1024, largest, 128)]
    return sorted({size for size in sizes if size < largest} | {largest})


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Inputs and outputs of the graphs of all sizes, at fixed addresses. T is the largest size."""

    rows: GraphRows
    queries: torch.Tensor
    """[T, heads, features of a query]: from a graph to the attention after it."""
    attended: torch.Tensor
    """[T, heads, features of a value]: from the attention to the graph after it."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """The graphs of one size: one more than there are layers."""

    graphs: list[torch.cuda.CUDAGraph]
    hidden: torch.Tensor

    def replay(self) -> None:
        for graph in self.graphs:
            graph.replay()


class PiecewiseGraphs:
    """Captured forward passes without their attention, all in one memory pool. A `Forward`.

    More tokens may take less time, because of cuBLAS's heuristics. A size that is no faster than the next
    larger one is dropped, and its steps are padded to that one.
    """

    def __init__(
        self,
        model: CausalLM,
        attention: PiecewiseAttention,
        *,
        largest: int,
        scratch_slot: int,
        groups: Sequence[int],
        communicator: Communicator,
        progress: Progress,
    ) -> None:
        """`largest`: tokens of the largest step. `groups`: of each layer, the number of its KV group."""
        self._model = model
        self._attention = attention
        self._communicator = communicator
        self._groups = groups
        weight, part = model.embed.weight, model.part
        queries, attended = (
            torch.zeros(largest, part.num_heads, features, dtype=weight.dtype, device=weight.device)
            for features in (part.query_dim, part.value_dim)
        )
        rows = GraphRows(
            num_groups=1 + max(groups),
            largest=largest,
            scratch_slot=scratch_slot,
            device=weight.device,
            adapters=model.adapter_rows is not None,
        )
        self._buffers = _Buffers(rows, queries, attended)
        self._chains: dict[int, _Chain] = {}
        self._capture(token_sizes(largest)[::-1], progress)
        self._sizes = sorted(self._chains)

    def fits(self, num_chunks: int, num_rows: int) -> bool:
        return num_rows <= self._sizes[-1]

    def place(self, num_rows: int) -> torch.Tensor:
        return self._buffers.rows.place(self._size_for(num_rows))

    def prepare(self, batch: Batch) -> None:
        self._attention.prepare(batch)
        self._model.expect(batch.num_rows)

    def run(self, batch: Batch) -> Enqueuing:
        """Hidden states of the batch's tokens, padding rows last; valid until the next run."""
        n = batch.num_rows
        chain = self._chains[self._size_for(n)]
        queries, attended = self._buffers.queries[:n], self._buffers.attended[:n]
        *graphs, last = chain.graphs
        for layer, graph in enumerate(graphs):
            graph.replay()
            self._attention.attend(layer, queries, attended)
            if layer >= _LEAD:
                yield
        last.replay()
        return chain.hidden

    def _size_for(self, num_tokens: int) -> int:
        return self._sizes[bisect_left(self._sizes, num_tokens)]

    def _capture(self, sizes: Sequence[int], progress: Progress) -> None:
        """Largest first, so that smaller graphs reuse its memory pool."""
        device = self._buffers.queries.device
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        weights = sample_weights(self._model)
        fastest = math.inf
        with torch.cuda.stream(stream):
            for done, size in enumerate(sizes):
                progress("Capturing CUDA graphs of mixed steps", done, len(sizes))
                with faster_library(weights, rows=size):
                    chain = self._captured(size, pool)
                took = self._communicator.all_reduce_min(_microseconds(chain))  # the same sizes on all ranks
                if took < _GAIN * fastest:
                    fastest = took
                    self._chains[size] = chain
        torch.cuda.current_stream(device).wait_stream(stream)
        progress("Capturing CUDA graphs of mixed steps", len(sizes), len(sizes))

    def _captured(self, size: int, pool: Any) -> _Chain:
        self._model.expect(size)
        rows = self._buffers.rows.padding(size)
        slots = self._buffers.rows.slots(rows)
        self._model.adapt(rows)
        self._forward(rows, _Storing(self._attention, self._buffers, slots, self._groups))  # loads kernels
        torch.cuda.synchronize(rows.device)
        cutter = _Cutter(self._attention, self._buffers, slots, self._groups, pool)
        cutter.begin()
        hidden = self._forward(rows, cutter)
        cutter.end()
        return _Chain(cutter.graphs, hidden)

    def _forward(self, rows: torch.Tensor, attention: _Storing) -> torch.Tensor:
        hidden: torch.Tensor = self._model(rows[0], rows[1], attention)
        return hidden


def _microseconds(chain: _Chain) -> int:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    chain.replay()  # the first replay uploads the graph, which is slow
    times: list[float] = []
    for _ in range(_REPLAYS):
        began.record()
        chain.replay()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    return round(1000 * min(times))


class _Storing:
    """Replaces attention in a chain: stores keys and values in the pool, and queries in the buffers."""

    def __init__(
        self,
        attention: PiecewiseAttention,
        buffers: _Buffers,
        slots: torch.Tensor,
        groups: Sequence[int],
    ) -> None:
        """`slots` [G, size]: where keys and values of a group go. `groups`: of each layer, its number."""
        self._attention = attention
        self._buffers = buffers
        self._slots = slots
        self._groups = groups

    def forward(self, layer: int, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        n, buffers = len(qkv), self._buffers
        slots = self._slots[self._groups[layer]]
        self._attention.store(layer, qkv, rotation, slots, buffers.queries[:n])
        return buffers.attended[:n]


class _Cutter(_Storing):
    """The same during capture: ends the current graph and begins the next."""

    def __init__(
        self,
        attention: PiecewiseAttention,
        buffers: _Buffers,
        slots: torch.Tensor,
        groups: Sequence[int],
        pool: Any,
    ) -> None:
        super().__init__(attention, buffers, slots, groups)
        self._pool = pool
        self.graphs: list[torch.cuda.CUDAGraph] = []

    def begin(self) -> None:
        self.graphs.append(torch.cuda.CUDAGraph())
        # Other threads may call CUDA meanwhile, such as a KV transport that registers memory.
        # `torch.cuda.graph` is not used because it runs the garbage collector each time, and there are a
        # thousand graphs.
        self.graphs[-1].capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> None:
        self.graphs[-1].capture_end()

    def forward(self, layer: int, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        attended = super().forward(layer, qkv, rotation)
        self.end()
        self.begin()
        return attended
