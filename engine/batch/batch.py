"""Builds a forward pass's flat arrays from a step's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from common.kv_groups import ONE_GROUP, KVGroup
from engine.batch.block_tables import BlockTables, starts_of
from engine.batch.step_inputs import Ints, StepInputs
from engine.batch.verified_rows import VerifiedRows
from engine.core.largest_step import Span
from engine.core.request import PENDING
from engine.core.request_state import NO_SLOT
from engine.device.staging import send

_SHORT_TABLE: Final = 256
"""Pages."""


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Slots of the recurrent states of R requests; see `StepInputs.states`."""

    sources: Ints
    """[R]: the state that a request continues; NO_SLOT: the empty one."""
    slots: Ints
    """[R]: where its state goes."""
    saves: Ints
    """[R]: where its state after `save_rows` rows goes too, or NO_SLOT."""
    save_rows: Ints
    """[R]"""
    runs: Ints
    """[R]: of a verify chunk, which is as many decodes here, their number at the first one and 0 at the
    others; 1 for any other request. The state that is left is the one behind the drafts that were right."""

    @classmethod
    def of(cls, states: Ints) -> StateBatch | None:
        """From `StepInputs.states`."""
        return cls(*states.reshape(-1, 5).T.copy()) if len(states) else None

    @property
    def verified(self) -> Ints:
        """[C]: first decodes of verify chunks."""
        return np.flatnonzero(self.runs > 1)


@dataclass(frozen=True, slots=True)
class GroupTables:
    """Where the keys and values of a step are, for the layers of one group of `ModelSpec.kv_groups`."""

    slot_mapping: torch.Tensor
    """[T] int64: page * page_size + offset, where each token's key and value go."""
    block_tables: BlockTables
    """The pages of each request that hold the context of its tokens, without those behind the window."""
    context_lens: Ints
    """[R]: tokens from the first of these pages to the last token of a request. Queries are the last of them,
    so masks that count from the end of a context need no more."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass: T tokens of R requests, in the plan's order, of which S rows sample and Q are scored.

    Requests with several tokens come first, then those with one. Tensors are on the device; arrays stay
    on the host, where backends plan with them.
    """

    rows: torch.Tensor
    """[2 + G, T] int64: `input_ids`, `positions` and the `slot_mapping` of each group, as one tensor, since
    graphs take them at fixed addresses by one copy."""
    num_chunks: int
    """Requests with more than one token; the other R - num_chunks decode."""
    query_indptr: Ints
    """[R + 1]: request r owns rows query_indptr[r] to query_indptr[r + 1]."""
    context_lens: Ints
    """[R]: tokens of a request up to its last row, which is included."""
    groups: Sequence[GroupTables]

    sample_rows: torch.Tensor
    """[S] int64: rows whose hidden state predicts a token."""
    sample_slots: torch.Tensor
    """[S] int64: the requests' slots."""
    scored_rows: torch.Tensor
    """[Q] int64: rows whose hidden state gives the log-probability of a token that is known."""
    pending_rows: torch.Tensor
    """Rows whose input token was sampled by the step before and is known to the device alone."""
    pending_slots: torch.Tensor
    states: StateBatch | None = None
    """None for models without a recurrent state."""
    verified: VerifiedRows | None = None
    """None for these, and without drafts."""

    @property
    def input_ids(self) -> torch.Tensor:
        """[T] int64. Rows in `pending_rows` are still to be filled from `pending_slots`."""
        return self.rows[0]

    @property
    def positions(self) -> torch.Tensor:
        """[T] int64, counted from the start of the request."""
        return self.rows[1]

    @property
    def num_rows(self) -> int:
        """T."""
        return self.rows.shape[1]

    @property
    def num_requests(self) -> int:
        return len(self.context_lens)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What does not depend on how far the requests of a step are. Fields of the same name: see `Batch`."""

    key: bytes
    indptr: Ints
    num_chunks: int
    owner: Ints | None
    """[T]: the request of each row; None: each has one."""
    place: Ints
    """[T]: of a row among those of its request."""
    slot_of: Ints
    """[T]"""
    sample_rows: torch.Tensor
    sample_slots: torch.Tensor
    scored_rows: torch.Tensor


class BatchBuilder:
    """Builds batches, of steps in the order in which they were written. O(tokens), in numpy.

    Block tables are kept in one array per group with a row per slot. A row is rewritten only when a step has
    new pages for its slot; a batch gets as many pages of each row as its context needs.
    """

    def __init__(
        self,
        *,
        page_size: int,
        max_requests: int,
        max_model_len: int,
        scratch_page: int,
        device: torch.device,
        groups: Sequence[KVGroup] = ONE_GROUP,
    ) -> None:
        self._page_size = page_size
        self._groups = groups
        self._scratch = scratch_page
        self._device = device
        self._none = torch.empty(0, dtype=torch.int64, device=device)
        self._shape: _Shape | None = None
        """Of the last batch."""
        shape = (len(groups), max_requests, -(-max_model_len // page_size))
        self._tables = np.full(shape, scratch_page, dtype=np.int64)

    def build(self, inputs: StepInputs) -> Batch:
        page_size, slots, starts = self._page_size, inputs.slots, inputs.starts
        shape = self._shape_of(inputs)
        indptr, slot_of, num_rows = shape.indptr, shape.slot_of, len(inputs.input_ids)
        context_lens = starts + inputs.lengths

        self._refresh_tables(inputs)
        positions = starts if shape.owner is None else shape.place + starts[shape.owner]
        block, offset = np.divmod(positions, page_size)
        skipped = [self._skipped(group, starts) for group in self._groups]
        ends = -(-context_lens // page_size)
        tables = [self._block_tables(number, slots, first, ends) for number, first in enumerate(skipped)]
        slot_mappings = [table[slot_of, block] * page_size + offset for table in self._tables]

        input_ids = inputs.input_ids
        pending = np.flatnonzero(input_ids == PENDING)
        input_ids[pending] = 0
        rows = _aligned(input_ids, positions, *slot_mappings)
        if len(pending):
            on_device, pending_rows, pending_slots = send([rows, pending, slot_of[pending]], self._device)
        else:
            (on_device,), pending_rows, pending_slots = send([rows], self._device), self._none, self._none
        on_device = on_device[:, :num_rows]
        states, verified = StateBatch.of(inputs.states), None
        if states is not None:
            firsts = states.verified  # each row of which samples
            samples = np.repeat(np.cumsum(inputs.samples), inputs.lengths)
            verified = VerifiedRows.of(indptr[firsts], states.runs[firsts], samples, self._device)
        return Batch(
            rows=on_device,
            num_chunks=shape.num_chunks,
            query_indptr=indptr,
            context_lens=context_lens,
            groups=[
                GroupTables(slot_mapping, lists, context_lens - first * page_size)
                for slot_mapping, lists, first in zip(on_device[2:], tables, skipped, strict=True)
            ],
            sample_rows=shape.sample_rows,
            sample_slots=shape.sample_slots,
            scored_rows=shape.scored_rows,
            pending_rows=pending_rows,
            pending_slots=pending_slots,
            states=states,
            verified=verified,
        )

    def _shape_of(self, inputs: StepInputs) -> _Shape:
        """Made anew only where a step differs from the one before."""
        parts = (inputs.slots, inputs.lengths, inputs.samples, inputs.scored)
        key = b"".join([part.tobytes() for part in parts])
        if self._shape is None or self._shape.key != key:
            self._shape = self._new_shape(key, *parts)
        return self._shape

    def _new_shape(self, key: bytes, slots: Ints, lengths: Ints, samples: Ints, scored: Ints) -> _Shape:
        indptr = starts_of(lengths)
        num_rows, owner, place, slot_of = int(indptr[-1]), None, indptr[:-1], slots
        if num_rows != len(slots):
            owner = np.repeat(np.arange(len(slots)), lengths)
            place, slot_of = np.arange(num_rows) - indptr[:-1][owner], slots[owner]
        sampled = _last_rows(indptr[1:], samples), np.repeat(slots, samples)
        sent = send([*sampled, _last_rows(indptr[1:] - samples, scored)], self._device)
        chunks = int(np.count_nonzero(lengths > 1))
        return _Shape(key, indptr, chunks, owner, place, slot_of, *sent)

    def _skipped(self, group: KVGroup, starts: Ints) -> Ints:
        """[R]: blocks behind the window of the first token."""
        if group.window is None:
            return np.zeros_like(starts)
        return np.maximum(starts + 1 - group.window, 0) // self._page_size

    def _block_tables(self, group: int, slots: Ints, firsts: Ints, ends: Ints) -> BlockTables:
        tables, counts = self._tables[group], ends - firsts
        indptr = starts_of(counts)
        if indptr[-1] <= _SHORT_TABLE * len(
            slots
        ):  # an index for each page takes less time than a slice each
            places = slots * tables.shape[1] + firsts - indptr[:-1]
            return BlockTables(tables.reshape(-1)[np.arange(indptr[-1]) + np.repeat(places, counts)], indptr)
        rows = zip(slots.tolist(), firsts.tolist(), ends.tolist(), strict=True)
        return BlockTables(np.concatenate([tables[slot, first:end] for slot, first, end in rows]), indptr)

    def _refresh_tables(self, inputs: StepInputs) -> None:
        end, stride = 0, len(self._groups)
        for slot, count in zip(inputs.moved.tolist(), inputs.page_counts.tolist(), strict=True):
            begin, end = end, end + count
            rows = self._tables[:, slot]
            rows[:, : count // stride] = inputs.pages[begin:end].reshape(-1, stride).T
            rows[:, count // stride :] = self._scratch


def _last_rows(ends: Ints, counts: Ints) -> Ints:
    """Rows [end - count, end) of every chunk, one chunk after another."""
    if not counts.any():
        return counts[:0]
    return np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)


def _aligned(*arrays: Ints) -> Ints:
    """Of equal lengths, as rows of one array, each of which begins at a multiple of 16 bytes: see `send`."""
    length = len(arrays[0])
    rows = np.empty((len(arrays), length + length % 2), dtype=np.int64)
    for row, array in zip(rows, arrays, strict=True):
        row[:length] = array
    return rows


def scratch_batch(
    spans: Sequence[Span],
    scratch_page: int,
    page_size: int,
    device: torch.device,
    scratch_slot: int | None = None,
    num_groups: int = 1,
) -> Batch:
    """A dummy batch whose requests use the scratch page only. Single tokens come last.

    `scratch_slot`: of the state, for models that have one.
    """
    lengths = np.array([span.length for span in spans], dtype=np.int64)
    context_lens = np.array([span.start + span.length for span in spans], dtype=np.int64)
    positions = np.concatenate([np.arange(start, start + length) for start, length in spans])
    slots = scratch_page * page_size + positions % page_size
    rows, none = send([_aligned(np.zeros_like(positions), positions, slots), positions[:0]], device)
    rows = rows[:, : len(positions)]
    counts = -(-context_lens // page_size)
    tables = BlockTables(np.full(counts.sum(), scratch_page, dtype=np.int64), starts_of(counts))
    return Batch(
        rows=torch.cat([rows, *[rows[2:]] * (num_groups - 1)]),
        num_chunks=int(np.count_nonzero(lengths > 1)),
        query_indptr=starts_of(lengths),
        context_lens=context_lens,
        groups=[GroupTables(rows[2], tables, context_lens)] * num_groups,
        sample_rows=none,
        sample_slots=none,
        scored_rows=none,
        pending_rows=none,
        pending_slots=none,
        states=None if scratch_slot is None else _scratch_states(len(spans), scratch_slot),
    )


def _scratch_states(count: int, slot: int) -> StateBatch:
    none, rows = np.full(count, NO_SLOT), np.zeros(count, dtype=np.int64)
    return StateBatch(none, np.full(count, slot), none, rows, rows + 1)
