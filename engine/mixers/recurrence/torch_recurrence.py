"""Layers with states over a batch in plain torch: for CPUs, and the oracle of the kernels for GPUs.

A verify chunk writes no state while it runs. Its rows' inputs are kept until the sampler has told how many of
its drafts are right; then the rule, and nothing else of the model, runs over those rows again and
writes the state after them. The inputs take about 32 kB a row and layer with 32 value heads of 128 features
in 16 bits. To keep the state after every row instead would take 2 MB for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.core.batch.batch import Batch
from engine.core.batch.step_inputs import Ints
from engine.core.request_state import NO_SLOT
from engine.kv.cache.state_pool import StatePool
from engine.mixers.recurrence.delta_rule import (
    DeltaInputs,
    chunked_delta_rule,
    convolve,
    recurrent_delta_rule,
    unit_keys,
)
from engine.mixers.recurrence.kimi_delta import chunked_kimi_delta, recurrent_kimi_delta
from engine.mixers.recurrence.state_space import chunked_state_space, recurrent_state_space
from engine.model_config.parts.recurrent_spec import Rule
from engine.modeling.layers.recurrent import RecurrentWeights

_RULES: Final = {
    Rule.GATED_DELTA: (chunked_delta_rule, recurrent_delta_rule),
    Rule.KIMI_DELTA: (chunked_kimi_delta, recurrent_kimi_delta),
    Rule.STATE_SPACE: (chunked_state_space, recurrent_state_space),
}
"""Chunked and recurrent form of each rule."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    rows: slice
    source: int
    ends: list[tuple[int, int]]
    """Rows of the chunk after which the state is written, and the slot."""


class _Inputs(NamedTuple):
    """What a layer has computed of some rows; see `RecurrentAttention.recur`."""

    mixed: Tensor
    log_decay: Tensor
    beta: Tensor
    weights: RecurrentWeights


class _Runs:
    """Rows that follow one another singly: one of each decode, several of each verify chunk."""

    def __init__(self, firsts: Ints, counts: Ints, sources: Ints, slots: Ints, device: torch.device) -> None:
        """[N] each: first rows, numbers of rows, and slots as in `StateBatch`.

        The state after the last row is written, unless the slot is NO_SLOT.
        """
        self.rounds: list[tuple[Tensor | slice, Tensor]] = []
        """The runs that have an n-th row, and this row."""
        for n in range(counts.max(initial=0)):
            going = np.flatnonzero(counts > n)
            which = slice(None) if len(going) == len(counts) else torch.from_numpy(going).to(device)
            self.rounds.append((which, torch.from_numpy(firsts[going] + n).to(device)))
        self.sources = torch.from_numpy(sources).clamp(min=0).to(device)
        self.fresh = torch.from_numpy(np.flatnonzero(sources == NO_SLOT)).to(device)
        kept = np.flatnonzero(slots != NO_SLOT)
        self.kept: Tensor | slice = slice(None)
        if len(kept) < len(slots):
            self.kept = torch.from_numpy(kept).to(device)
        self.slots = torch.from_numpy(slots[kept]).to(device)


class TorchRecurrence:
    """Chunks run one after another in the chunked form, decodes together in the recurrent one."""

    def __init__(self, pool: StatePool) -> None:
        self._pool = pool
        self._spec = pool.spec
        self._chunked, self._single = _RULES[pool.spec.rule]
        self._batch: Batch | None = None
        self._chunks: list[_Chunk] = []
        self._first_single = 0
        self._singles: _Runs | None = None
        self._seen: dict[int, _Inputs] = {}
        """Inputs of all single rows, by layer, if there are verify chunks among them."""

    def prepare(self, batch: Batch) -> None:
        states, n = batch.states, batch.num_chunks
        assert states is not None, "the step has no states"
        self._batch = batch
        self._seen = {}
        self._chunks = []
        for r in range(n):
            rows = slice(int(batch.query_indptr[r]), int(batch.query_indptr[r + 1]))
            ends = [(rows.stop - rows.start, int(states.slots[r]))]
            if states.saves[r] != NO_SLOT:
                ends.insert(0, (int(states.save_rows[r]), int(states.saves[r])))
            self._chunks.append(_Chunk(rows, int(states.sources[r]), ends))
        self._first_single = int(batch.query_indptr[n])
        runs = n + np.flatnonzero(states.runs[n:])
        slots = np.where(states.runs[runs] > 1, NO_SLOT, states.slots[runs])
        self._singles = self._runs(runs, states.runs[runs], slots) if len(runs) else None

    def recur(
        self, layer: int, mixed: Tensor, log_decay: Tensor, beta: Tensor, weights: RecurrentWeights
    ) -> Tensor:
        """See `RecurrentAttention.recur`."""
        heads, features = log_decay.shape[1], self._spec.value_dim
        out = mixed.new_empty(len(mixed), heads, features)
        for chunk in self._chunks:
            rows = chunk.rows
            inputs = _Inputs(mixed[rows], log_decay[rows], beta[rows], weights)
            out[rows] = self._chunk(layer, chunk, inputs)
        if self._singles is not None:
            rows = slice(self._first_single, None)
            inputs = _Inputs(mixed[rows], log_decay[rows], beta[rows], weights)
            if len(self._singles.rounds) > 1:
                self._seen[layer] = inputs
            self._follow(layer, inputs, self._singles, out[rows])
        return out

    def keep(self, accepted: Tensor) -> None:
        """See `Recurrence.keep`."""
        assert self._batch is not None
        assert self._batch.states is not None
        states = self._batch.states
        runs = self._runs(states.verified, 1 + accepted.cpu().numpy(), states.slots[states.verified])
        for layer, inputs in self._seen.items():
            self._follow(layer, inputs, runs)

    def _runs(self, requests: Ints, counts: Ints, slots: Ints) -> _Runs:
        batch = self._batch
        assert batch is not None
        assert batch.states is not None
        firsts = batch.query_indptr[requests] - self._first_single
        return _Runs(firsts, counts, batch.states.sources[requests], slots, batch.input_ids.device)

    def _chunk(self, layer: int, chunk: _Chunk, given: _Inputs) -> Tensor:
        matrices, windows = self._pool.layer(layer)
        if chunk.source == NO_SLOT:
            state, window = torch.zeros_like(matrices[0]), torch.zeros_like(windows[0])
        else:
            state, window = matrices[chunk.source], windows[chunk.source]
        before = window.shape[1]
        window = torch.cat((window, given.mixed.t()), dim=1)
        convolved = convolve(window[None], given.weights.kernel, given.weights.bias)[0].t()
        inputs = self._inputs(convolved, given.log_decay, given.beta)
        outputs = []
        for (begin, _), (end, slot) in pairwise([(0, NO_SLOT), *chunk.ends]):
            if begin < end:
                output, state = self._chunked(state, inputs.rows(slice(begin, end)))
                outputs.append(output)
            matrices[slot] = state
            windows[slot] = window[:, end : end + before]
        return _skipped(torch.cat(outputs), inputs, given.weights)

    def _follow(self, layer: int, inputs: _Inputs, runs: _Runs, out: Tensor | None = None) -> None:
        """Compute the rows of runs, one of each at a time, and write the states after their last ones."""
        matrices, windows = self._pool.layer(layer)
        states, window = matrices[runs.sources], windows[runs.sources]
        states[runs.fresh] = 0
        window[runs.fresh] = 0
        for which, rows in runs.rounds:
            state = states[which]
            seen = torch.cat((window[which], inputs.mixed[rows].unsqueeze(2)), dim=2)
            convolved = convolve(seen, inputs.weights.kernel, inputs.weights.bias).squeeze(2)
            given = self._inputs(convolved, inputs.log_decay[rows], inputs.beta[rows])
            result = self._single(state, given)
            if out is not None:
                out[rows] = _skipped(result, given, inputs.weights).to(out.dtype)
            if isinstance(which, slice):  # `state` is `states`
                window = seen[:, :, 1:]
            else:
                states[which], window[which] = state, seen[:, :, 1:]
        matrices[runs.slots] = states[runs.kept]
        windows[runs.slots] = window[runs.kept]

    def _inputs(self, convolved: Tensor, log_decay: Tensor, beta: Tensor) -> DeltaInputs:
        """From `convolved` [T, features]."""
        spec = self._spec
        tokens, keys = len(convolved), spec.key_size
        q, k = convolved[:, :keys], convolved[:, keys : 2 * keys]
        q, k = (heads.reshape(tokens, spec.key_heads, spec.key_dim) for heads in (q, k))
        repeats = spec.value_heads // spec.key_heads
        if spec.rule is not Rule.STATE_SPACE:
            q, k = unit_keys(q, k, repeats)
        else:
            q, k = (heads.float().repeat_interleave(repeats, dim=1) for heads in (q, k))
        v = convolved[:, 2 * keys :].reshape(tokens, spec.value_heads, spec.value_dim).float()
        return DeltaInputs(q, k, v, log_decay, beta)


def _skipped(result: Tensor, inputs: DeltaInputs, weights: RecurrentWeights) -> Tensor:
    """What a layer returns, [T, H, value_dim], of the `result` of its rule."""
    return result if weights.skip is None else result + inputs.v * weights.skip[:, None]
