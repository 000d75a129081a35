"""Gated delta nets over a batch in plain torch: for CPUs, and the oracle of the kernels for GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from engine.batch.batch import Batch
from engine.core.request_state import NO_SLOT
from engine.kv_cache.state_pool import StatePool
from engine.recurrence.delta_rule import (
    DeltaInputs,
    chunked_delta_rule,
    convolve,
    recurrent_delta_rule,
    unit_keys,
)

__all__ = ["TorchRecurrence"]


@dataclass(frozen=True, slots=True)
class _Chunk:
    rows: slice
    source: int
    ends: list[tuple[int, int]]
    """Rows of the chunk after which the state is written, and the slot."""


class TorchRecurrence:
    """Chunks run one after another in the chunked form, decodes together in the recurrent one."""

    def __init__(self, pool: StatePool) -> None:
        self._pool = pool
        self._spec = pool.spec
        self._chunks: list[_Chunk] = []
        self._first_decode = 0
        self._sources = self._slots = self._fresh = torch.empty(0, dtype=torch.int64)

    def prepare(self, batch: Batch) -> None:
        states, n = batch.states, batch.num_chunks
        assert states is not None, "the step has no states"
        self._chunks = []
        for r in range(n):
            rows = slice(int(batch.query_indptr[r]), int(batch.query_indptr[r + 1]))
            ends = [(rows.stop - rows.start, int(states.slots[r]))]
            if states.saves[r] != NO_SLOT:
                ends.insert(0, (int(states.save_rows[r]), int(states.saves[r])))
            self._chunks.append(_Chunk(rows, int(states.sources[r]), ends))
        self._first_decode = int(batch.query_indptr[n])
        device = batch.input_ids.device
        self._slots = torch.from_numpy(states.slots[n:]).to(device)
        sources = torch.from_numpy(states.sources[n:]).to(device)
        self._fresh = (sources == NO_SLOT).nonzero().squeeze(1)
        self._sources = sources.clamp(min=0)

    def recur(self, layer: int, mixed: Tensor, log_decay: Tensor, beta: Tensor, kernel: Tensor) -> Tensor:
        """See `RecurrentAttention.recur`."""
        heads, features = log_decay.shape[1], self._spec.value_dim
        out = mixed.new_empty(len(mixed), heads, features)
        for chunk in self._chunks:
            rows = chunk.rows
            out[rows] = self._chunk(layer, chunk, mixed[rows], log_decay[rows], beta[rows], kernel)
        if len(self._slots):
            rows = slice(self._first_decode, None)
            out[rows] = self._decodes(layer, mixed[rows], log_decay[rows], beta[rows], kernel)
        return out

    def _chunk(
        self, layer: int, chunk: _Chunk, mixed: Tensor, log_decay: Tensor, beta: Tensor, kernel: Tensor
    ) -> Tensor:
        matrices, windows = self._pool.layer(layer)
        if chunk.source == NO_SLOT:
            state, window = torch.zeros_like(matrices[0]), torch.zeros_like(windows[0])
        else:
            state, window = matrices[chunk.source], windows[chunk.source]
        before = window.shape[1]
        window = torch.cat((window, mixed.t()), dim=1)
        inputs = self._inputs(convolve(window[None], kernel)[0].t(), log_decay, beta)
        outputs = []
        for (begin, _), (end, slot) in pairwise([(0, NO_SLOT), *chunk.ends]):
            if begin < end:
                output, state = chunked_delta_rule(state, inputs.rows(slice(begin, end)))
                outputs.append(output)
            matrices[slot] = state
            windows[slot] = window[:, end : end + before]
        return torch.cat(outputs)

    def _decodes(self, layer: int, mixed: Tensor, log_decay: Tensor, beta: Tensor, kernel: Tensor) -> Tensor:
        matrices, windows = self._pool.layer(layer)
        states, window = matrices[self._sources], windows[self._sources]
        states[self._fresh] = 0
        window[self._fresh] = 0
        window = torch.cat((window, mixed.unsqueeze(2)), dim=2)
        inputs = self._inputs(convolve(window, kernel).squeeze(2), log_decay, beta)
        output = recurrent_delta_rule(states, inputs)
        matrices[self._slots] = states
        windows[self._slots] = window[:, :, 1:]
        return output

    def _inputs(self, convolved: Tensor, log_decay: Tensor, beta: Tensor) -> DeltaInputs:
        """From `convolved` [T, features]."""
        spec = self._spec
        tokens, keys = len(convolved), spec.key_size
        q, k = convolved[:, :keys], convolved[:, keys : 2 * keys]
        q, k = (heads.reshape(tokens, spec.key_heads, spec.key_dim) for heads in (q, k))
        q, k = unit_keys(q, k, spec.value_heads // spec.key_heads)
        v = convolved[:, 2 * keys :].reshape(tokens, spec.value_heads, spec.value_dim).float()
        return DeltaInputs(q, k, v, log_decay, beta)
