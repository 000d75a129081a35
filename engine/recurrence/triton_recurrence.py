"""Gated delta nets over a batch on GPUs; decodes can be captured in CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.batch.batch import Batch, Ints, StateBatch
from engine.batch.block_tables import starts_of
from engine.core.request_state import NO_SLOT
from engine.device.staging import send
from engine.kernels.delta_net.causal_conv import convolve_chunks, convolve_decodes, keep_windows
from engine.kernels.delta_net.delta_rule import (
    STRETCH,
    DeltaShape,
    Stretches,
    delta_chunks,
    delta_decodes,
    suits,
)
from engine.kv_cache.state_pool import StatePool
from engine.model_config.delta_spec import DeltaSpec

__all__ = ["TritonRecurrence", "suits_kernels"]


def suits_kernels(spec: DeltaSpec, dtype: torch.dtype) -> bool:
    """Whether this computes such layers, with activations in `dtype`."""
    return suits(_shape(spec)) and dtype != torch.float32 and spec.kernel > 1


def _shape(spec: DeltaSpec) -> DeltaShape:
    return DeltaShape(spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim)


class TritonRecurrence:
    """Chunks run in the chunked form, decodes in the recurrent one; see `TorchRecurrence`."""

    def __init__(self, pool: StatePool) -> None:
        self._pool = pool
        self._shape = _shape(pool.spec)
        self._num_chunk_rows = 0
        self._chunks: _Chunks | None = None
        self._sources = self._slots = torch.empty(0, dtype=torch.int32)
        """Of decodes."""
        self._graph_slots = torch.empty((2, 0), dtype=torch.int32)

    def prepare(self, batch: Batch) -> None:
        states, n = batch.states, batch.num_chunks
        assert states is not None, "the step has no states"
        self._num_chunk_rows = int(batch.query_indptr[n])
        planned = _planned(batch.query_indptr[: n + 1], states) if n else []
        decodes = [states.sources[n:], states.slots[n:]]
        arrays = [array.astype(np.int32) for array in [*decodes, *planned]]
        self._sources, self._slots, *sent = send(arrays, batch.input_ids.device)
        self._chunks = _Chunks(sent) if n else None

    def recur(self, layer: int, mixed: Tensor, log_decay: Tensor, beta: Tensor, kernel: Tensor) -> Tensor:
        """See `RecurrentAttention.recur`."""
        shape, rows = self._shape, self._num_chunk_rows
        matrices, windows = self._pool.layer(layer)
        convolved = mixed.new_empty(mixed.shape)
        out = mixed.new_empty(len(mixed), shape.value_heads, shape.value_dim)
        if chunks := self._chunks:
            convolve_chunks(mixed, kernel, windows, *chunks.stretches[:4], convolved, rows=STRETCH)
            keep_windows(mixed, windows, *chunks.windows)
            delta_chunks(convolved, log_decay, beta, matrices, chunks.stretches, out, shape)
        if len(self._slots):
            sources, slots = self._sources, self._slots
            convolve_decodes(mixed[rows:], kernel, windows, sources, slots, convolved[rows:])
            gates = log_decay[rows:], beta[rows:]
            delta_decodes(convolved[rows:], *gates, matrices, sources, slots, out[rows:], shape)
        return out

    # -------------------------------------------------------------------------------------- graphs

    def init_graphs(self, max_batch: int) -> None:
        """Allocate the slots that captured graphs of up to `max_batch` decodes read."""
        device = self._pool.layer(0)[0].device
        self._graph_slots = torch.full((2, max_batch), NO_SLOT, dtype=torch.int32, device=device)

    def prepare_capture(self, batch_size: int) -> None:
        self._pad(0, batch_size)

    def prepare_replay(self, batch: Batch, batch_size: int) -> None:
        states, n = batch.states, batch.num_requests
        assert states is not None, "the step has no states"
        arrays = [states.sources.astype(np.int32), states.slots.astype(np.int32)]
        for slots, sent in zip(self._graph_slots, send(arrays, batch.input_ids.device), strict=True):
            slots[:n].copy_(sent)
        self._pad(n, batch_size)

    def _pad(self, begin: int, end: int) -> None:
        """Rows of padding begin with an empty state and write it to the scratch slot."""
        sources, slots = self._graph_slots
        if begin < end:
            sources[begin:end].fill_(NO_SLOT)
            slots[begin:end].fill_(self._pool.scratch_slot)
        self._sources, self._slots = sources[:end], slots[:end]
        self._num_chunk_rows, self._chunks = 0, None


class _Chunks:
    """A step's chunks on the device."""

    def __init__(self, sent: Sequence[Tensor]) -> None:
        """`sent`: as `_planned` returns it."""
        fields = len(Stretches._fields)
        self.stretches = Stretches(*sent[:fields])
        self.windows = tuple(sent[fields:])
        """Rows, sources, ends and slots of `keep_windows`."""


def _planned(query_indptr: Ints, states: StateBatch) -> list[Ints]:
    """The fields of `Stretches`, and the arguments of `keep_windows`.

    A chunk that saves a checkpoint is two segments; stretches begin with their segment.
    """
    n = len(query_indptr) - 1
    lengths, firsts = np.diff(query_indptr), query_indptr[:-1]
    saves, sources = states.saves[:n], states.sources[:n]
    saved = np.where(saves != NO_SLOT, states.save_rows[:n], 0)
    ends = np.stack([saved, lengths], axis=1)
    slots = np.stack([saves, states.slots[:n]], axis=1)
    sizes = np.diff(ends, axis=1, prepend=0).reshape(-1)
    counts = -(-sizes // STRETCH)
    of_segment = np.repeat(np.arange(2 * n), counts)
    index = np.arange(len(of_segment)) - starts_of(counts)[of_segment]
    owner = of_segment // 2
    starts = firsts[owner] + (ends.reshape(-1) - sizes)[of_segment] + index * STRETCH
    indptr = starts_of(counts.reshape(n, 2).sum(axis=1))
    saves_here = (of_segment % 2 == 0) & (index == counts[of_segment] - 1)
    ends_here = np.arange(len(owner)) == indptr[owner + 1] - 1
    return [
        starts,
        np.minimum(sizes[of_segment] - index * STRETCH, STRETCH),
        firsts[owner],
        sources[owner],
        np.where(np.stack([saves_here, ends_here], axis=1), slots[owner], NO_SLOT),
        indptr,
        firsts,
        sources,
        ends,
        slots,
    ]
