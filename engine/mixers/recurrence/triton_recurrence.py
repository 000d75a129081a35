"""Gated delta nets over a batch on GPUs; decodes and verify chunks can be captured in CUDA graphs.

As in `TorchRecurrence`, the state after the right drafts is computed from inputs that are kept until these
are known, for all layers in two launches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.core.batch.batch import Batch, StateBatch
from engine.core.batch.block_tables import starts_of
from engine.core.batch.step_inputs import Ints
from engine.core.request_state import NO_SLOT
from engine.device.staging import send
from engine.kernels.delta_net.causal_conv import convolve_chunks, convolve_decodes, keep_windows
from engine.kernels.delta_net.delta_rule import (
    STRETCH,
    DeltaShape,
    Stretches,
    delta_again,
    delta_chunks,
    delta_decodes,
    suits,
)
from engine.kernels.delta_net.single_rows import SingleRows
from engine.kv.cache.state_pool import StatePool
from engine.mixers.recurrence.chunk_stages import chunk_stages
from engine.mixers.recurrence.hopper_chunks import SentStage, hopper_chunks, sent_stages, suits_hopper
from engine.model_config.parts.recurrent_spec import RecurrentSpec, Rule
from engine.modeling.layers.recurrent import RecurrentWeights


def suits_kernels(spec: RecurrentSpec, dtype: torch.dtype) -> bool:
    """Whether this computes such layers, with activations in `dtype`."""
    known = spec.rule is Rule.GATED_DELTA and not spec.kernel_bias
    return known and suits(_shape(spec)) and dtype != torch.float32 and spec.kernel > 1


def _shape(spec: RecurrentSpec) -> DeltaShape:
    return DeltaShape(spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim)


class _Kept:
    """Inputs of all layers for the single rows of a step, at fixed addresses for CUDA graphs.

    For a row with 24 layers of 32 value heads of 128 features these take 0.8 MB, where a state takes 50.
    """

    def __init__(self, pool: StatePool, max_rows: int) -> None:
        windows = pool.layer(0)[1]
        spec, layers, device = pool.spec, len(pool.spec.layers), windows.device
        rows = torch.zeros(2, layers, max_rows, spec.mixed_size, dtype=windows.dtype, device=device)
        self.mixed, self.convolved = rows
        """[layers, rows, features]"""
        shape = (layers, 2, max_rows, spec.value_heads)
        self.gates = torch.zeros(shape, dtype=torch.float32, device=device)
        self.firsts = torch.arange(max_rows, dtype=torch.int32, device=device)


class TritonRecurrence:
    """Chunks run in the chunked form, on Hopper by flashinfer's kernel. Decodes and verify chunks run in the
    recurrent one.
    """

    def __init__(self, pool: StatePool, max_verified: int = 0, *, flashinfer: bool = True) -> None:
        """`max_verified`: most single rows of a step, if drafts may be among them; 0: they never are.
        `flashinfer`: whether its kernel computes chunks where it can.
        """
        self._pool = pool
        self._shape = _shape(pool.spec)
        self._on_hopper = flashinfer and suits_hopper(self._shape, pool.layer(0)[0].device)
        self._kept = _Kept(pool, max_verified) if max_verified else None
        self._num_chunk_rows = 0
        self._chunks: _Chunks | None = None
        nothing = torch.empty(0, dtype=torch.int32)
        self._singles = SingleRows(nothing, nothing, nothing, nothing)
        self._verified = nothing, nothing
        """Single rows of the last step with drafts: [N] int64, the first ones of verify chunks; [R] their
        slots, NO_SLOT elsewhere.
        """
        self._graph_rows = torch.empty((len(SingleRows._fields), 0), dtype=torch.int32)

    def prepare(self, batch: Batch) -> None:
        states, n = batch.states, batch.num_chunks
        assert states is not None, "the step has no states"
        self._num_chunk_rows = int(batch.query_indptr[n])
        planned = _planned(batch.query_indptr[: n + 1], states) if n else []
        sent = self._sent([*_single_rows(states, n), *planned], batch, n)
        fields = len(SingleRows._fields)
        self._singles = SingleRows(*sent[:fields])
        self._chunks = _Chunks(sent[fields:], self._stages(batch, n)) if n else None

    def _stages(self, batch: Batch, n: int) -> list[SentStage]:
        """Stages of the `n` chunks; empty: our own kernels compute them."""
        states = batch.states
        if states is None or not self._on_hopper:
            return []
        arrays = states.sources, states.saves, states.save_rows, states.slots
        stages = chunk_stages(batch.query_indptr[: n + 1], *(array[:n] for array in arrays))
        return sent_stages(stages, batch.input_ids.device)

    def recur(
        self, layer: int, mixed: Tensor, log_decay: Tensor, beta: Tensor, weights: RecurrentWeights
    ) -> Tensor:
        """See `RecurrentAttention.recur`."""
        kernel = weights.kernel
        shape, rows = self._shape, self._num_chunk_rows
        matrices, windows = self._pool.layer(layer)
        convolved = mixed.new_empty(mixed.shape)
        out = mixed.new_empty(len(mixed), shape.value_heads, shape.value_dim)
        if chunks := self._chunks:
            convolve_chunks(mixed, kernel, windows, *chunks.stretches[:4], convolved, rows=STRETCH)
            keep_windows(mixed, windows, *chunks.windows)
            if chunks.stages:
                given = convolved[:rows], log_decay[:rows], beta[:rows]
                hopper_chunks(*given, matrices, chunks.stages, out[:rows], shape)
            else:
                delta_chunks(convolved, log_decay, beta, matrices, chunks.stretches, out, shape)
        if count := len(self._singles.counts):
            seen, gates, single = None, None, convolved[rows:]
            if self._kept is not None:
                single = self._kept.convolved[layer, :count]
                seen, gates = self._kept.mixed[layer], self._kept.gates[layer]
            convolve_decodes(mixed[rows:], kernel, windows, self._singles, single, seen)
            rates = log_decay[rows:], beta[rows:]
            delta_decodes(single, *rates, matrices, self._singles, out[rows:], shape, kept_gates=gates)
        return out

    def keep(self, accepted: Tensor) -> None:
        """See `Recurrence.keep`."""
        kept, pool = self._kept, self._pool
        assert kept is not None
        firsts, slots = self._verified
        counts = torch.zeros_like(slots)
        counts[firsts] = 1 + accepted.to(torch.int32)
        again = SingleRows(self._singles.sources[: len(slots)], slots, counts, counts)
        matrices, windows = pool.layer(0)
        delta_again(kept.convolved, kept.gates, matrices, pool.spec.matrix_values, again, self._shape)
        ends, places = (torch.stack([torch.full_like(x, NO_SLOT), x], dim=1) for x in (counts, slots))
        keep_windows(
            kept.mixed,
            windows,
            kept.firsts[: len(slots)],
            again.sources,
            ends,
            places,
            layer_values=pool.spec.window_values,
        )

    def _sent(self, arrays: Sequence[Ints], batch: Batch, n: int) -> list[Tensor]:
        """Arrays on the device, as int32. Notes which rows after the first `n` requests are verified."""
        states, device = batch.states, batch.input_ids.device
        assert states is not None
        small, firsts = [array.astype(np.int32) for array in arrays], states.verified
        if not len(firsts):
            return send(small, device)
        kept = np.full(len(states.slots) - n, NO_SLOT, dtype=np.int32)
        kept[firsts - n] = states.slots[firsts]
        *sent, slots = send([*small, kept], device)
        (places,) = send([firsts - n], device)
        self._verified = places, slots
        return sent

    # -------------------------------------------------------------------------------------- graphs

    def init_graphs(self, max_batch: int) -> None:
        """Allocate what captured graphs of up to `max_batch` single rows read."""
        device = self._pool.layer(0)[0].device
        shape = (len(SingleRows._fields), max_batch)
        self._graph_rows = torch.zeros(shape, dtype=torch.int32, device=device)

    def prepare_capture(self, batch_size: int) -> None:
        self._pad(0, batch_size)

    def prepare_replay(self, batch: Batch, batch_size: int) -> None:
        states, n = batch.states, batch.num_requests
        assert states is not None, "the step has no states"
        for values, sent in zip(self._graph_rows, self._sent(_single_rows(states, 0), batch, 0), strict=True):
            values[:n].copy_(sent)
        self._pad(n, batch_size)

    def _pad(self, begin: int, end: int) -> None:
        """Rows of padding begin with an empty state and write it to the scratch slot."""
        padding = SingleRows(*self._graph_rows)
        if begin < end:
            padding.sources[begin:end].fill_(NO_SLOT)
            padding.slots[begin:end].fill_(self._pool.scratch_slot)
            padding.counts[begin:end].fill_(1)
            padding.places[begin:end].fill_(0)
        self._singles = SingleRows(*(values[:end] for values in padding))
        self._num_chunk_rows, self._chunks = 0, None


def _single_rows(states: StateBatch, n: int) -> list[Ints]:
    """The fields of `SingleRows` for the rows after the first `n` requests."""
    runs = states.runs[n:]
    firsts = np.flatnonzero(runs)
    run = np.repeat(firsts, runs[firsts])
    slots = np.where(runs[run] > 1, NO_SLOT, states.slots[n:])
    return [states.sources[n:], slots, runs, np.arange(len(runs)) - run]


class _Chunks:
    """A step's chunks on the device."""

    def __init__(self, sent: Sequence[Tensor], stages: list[SentStage]) -> None:
        """`sent`: as `_planned` returns it."""
        self.stages = stages
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
