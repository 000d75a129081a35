"""Builds a forward pass's flat arrays from a step's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from common.kv_groups import ONE_GROUP, KVGroup
from engine.core.batch.block_tables import BlockTables, starts_of
from engine.core.batch.media_rows import MediaRows
from engine.core.batch.step_inputs import Ints, StepInputs
from engine.core.batch.verified_rows import VerifiedRows
from engine.core.largest_step import TokenSpan
from engine.core.request import PENDING
from engine.core.request_state import NO_SLOT
from engine.device.small_copies import copy, to_device
from engine.device.staging import Staging, send

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
    others; 1 for any other request. The state that is left is the one after the drafts that were right."""

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
    graphs take them at fixed addresses by one copy. For models that take adapters, one more: the slot of each
    row's adapter, or -1."""
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
    media: MediaRows | None = None
    """None: there are no rows of images."""
    adapted: bool = False
    """Whether a row has an adapter."""

    @property
    def input_ids(self) -> torch.Tensor:
        """[T] int64. Rows in `pending_rows` are still to be filled from `pending_slots`."""
        return self.rows[0]

    @property
    def positions(self) -> torch.Tensor:
        """[T] int64, counted from the start of the request."""
        return self.rows[1]

    @property
    def rotary_positions(self) -> torch.Tensor:
        """[T], or [3, T] where rows of images have positions along three axes."""
        media = self.media
        return self.positions if media is None or media.positions is None else media.positions

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

    parts: tuple[Ints, ...]
    """`slots`, `lengths`, `samples` and `scored` of `StepInputs`."""
    indptr: Ints
    owner: Ints | None
    """[T]: the request of each row; None: each has one."""
    place: Ints
    """[T]: of a row among those of its request."""
    slot_of: Ints
    """[T]"""
    zeros: Ints
    """[R]"""
    sample_rows: torch.Tensor
    sample_slots: torch.Tensor
    scored_rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where a batch's rows are on the device, and views of it."""

    memory: torch.Tensor
    """[2 + G, W]"""
    flat: torch.Tensor
    rows: torch.Tensor
    """[2 + G, T]"""
    slots: list[torch.Tensor]
    """G of them, [T]."""

    @classmethod
    def of(cls, memory: torch.Tensor, length: int, groups: int) -> _Placed:
        rows = memory[:, :length]
        return cls(memory, memory.view(-1), rows, [*rows[2 : 2 + groups]])


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
        """Shape of the last batch."""
        self._pending: tuple[_Shape | None, bytes, list[torch.Tensor]] = (None, b"", [])
        """Last batch with pending rows: its shape and these rows; they and their slots as tensors."""
        self._last: _Placed | None = None
        """The last batch in memory of the caller."""
        self._staging = Staging(torch.int64, device)
        shape = (len(groups), max_requests, -(-max_model_len // page_size))
        self._tables = np.full(shape, scratch_page, dtype=np.int64)

    def build(self, inputs: StepInputs, into: torch.Tensor | None = None) -> Batch:
        """`into` [2 + G, W], on the device: where `Batch.rows` go. The W - T columns after them become
        padding, which writes to the scratch page. None: in memory of their own."""
        shape, starts = self._shape_of(inputs), inputs.starts
        indptr, context_lens = shape.indptr, starts + inputs.lengths
        if len(inputs.moved):
            self._refresh_tables(inputs)
        positions = starts if shape.owner is None else shape.place + starts[shape.owner]
        block, offset = np.divmod(positions, self._page_size)
        ends = (block if shape.owner is None else block[indptr[1:] - 1]) + 1
        input_ids = inputs.input_ids
        (pending,) = (input_ids == PENDING).nonzero()
        pending_rows, pending_slots = self._none, self._none
        if len(pending):
            input_ids[pending] = 0
            pending_rows, pending_slots = self._sent(pending, shape)
        slot_mappings = [table[shape.slot_of, block] * self._page_size + offset for table in self._tables]
        adapters = []
        if len(inputs.adapters):
            slots, begins = np.split(inputs.adapters, 2)
            if shape.owner is not None:
                slots, begins = slots[shape.owner], begins[shape.owner]
            adapters = [np.where(positions >= begins, slots, -1)]
        placed = self._placed([input_ids, positions, *slot_mappings, *adapters], into)
        states, verified = StateBatch.of(inputs.states), None
        if states is not None:
            assert (states.saves[inputs.num_chunks :] == NO_SLOT).all(), "single rows save no checkpoints"
            firsts = states.verified  # each row of which samples
            samples = np.repeat(np.cumsum(inputs.samples), inputs.lengths)
            verified = VerifiedRows.of(indptr[firsts], states.runs[firsts], samples, self._device)
        return Batch(
            rows=placed.rows,
            num_chunks=inputs.num_chunks,
            query_indptr=indptr,
            context_lens=context_lens,
            groups=[
                self._group(number, slot_mapping, shape, starts, ends, context_lens)
                for number, slot_mapping in enumerate(placed.slots)
            ],
            sample_rows=shape.sample_rows,
            sample_slots=shape.sample_slots,
            scored_rows=shape.scored_rows,
            pending_rows=pending_rows,
            pending_slots=pending_slots,
            states=states,
            verified=verified,
            adapted=any((slots >= 0).any() for slots in adapters),
        )

    def _placed(self, arrays: Sequence[Ints], into: torch.Tensor | None) -> _Placed:
        """`Batch.rows` of these arrays [T] each. Each row begins at a multiple of 16 bytes: see `send`."""
        length = len(arrays[0])
        columns = padded_rows(length) if into is None else into.shape[1]
        host, ints = self._staging.take(len(arrays) * columns)
        table = ints.reshape(len(arrays), columns)
        for row, array in zip(table, arrays, strict=True):
            row[:length] = array
        table[:2, length:] = 0
        table[2:, length:] = self._scratch * self._page_size
        table[2 + len(self._groups) :, length:] = -1
        if into is None:
            on_device = host if self._device.type == "cpu" else to_device(host, self._device)
            return _Placed.of(on_device.view(len(arrays), columns), length, len(self._groups))
        if self._last is None or self._last.memory is not into or self._last.rows.shape[1] != length:
            self._last = _Placed.of(into, length, len(self._groups))
        copy(self._last.flat, host)
        return self._last

    def _sent(self, pending: Ints, shape: _Shape) -> list[torch.Tensor]:
        """`pending_rows` and `pending_slots`. Decodes have the same ones in step after step."""
        key = pending.tobytes()
        if self._pending[0] is not shape or self._pending[1] != key:
            self._pending = shape, key, self._staging.send([pending, shape.slot_of[pending]])
        return self._pending[2]

    def _shape_of(self, inputs: StepInputs) -> _Shape:
        """Made anew only where a step differs from the one before."""
        parts = (inputs.slots, inputs.lengths, inputs.samples, inputs.scored)
        if self._shape is None or not all(map(_are_equal, parts, self._shape.parts)):
            self._shape = self._new_shape(*parts)
        return self._shape

    def _new_shape(self, slots: Ints, lengths: Ints, samples: Ints, scored: Ints) -> _Shape:
        indptr = starts_of(lengths)
        num_rows, owner, place, slot_of = int(indptr[-1]), None, indptr[:-1], slots
        if num_rows != len(slots):
            owner = np.repeat(np.arange(len(slots)), lengths)
            place, slot_of = np.arange(num_rows) - indptr[:-1][owner], slots[owner]
        sampled = _last_rows(indptr[1:], samples), np.repeat(slots, samples)
        sent = send([*sampled, _last_rows(indptr[1:] - samples, scored)], self._device)
        parts = slots, lengths, samples, scored
        return _Shape(parts, indptr, owner, place, slot_of, np.zeros_like(slots), *sent)

    def _group(
        self,
        number: int,
        slot_mapping: torch.Tensor,
        shape: _Shape,
        starts: Ints,
        ends: Ints,
        context_lens: Ints,
    ) -> GroupTables:
        """`starts`, `ends` [R]: the first token of each chunk, and the end of its last block."""
        window, slots = self._groups[number].window, shape.parts[0]
        if window is None:
            return GroupTables(
                slot_mapping, self._block_tables(number, slots, shape.zeros, ends), context_lens
            )
        firsts = np.maximum(starts + 1 - window, 0) // self._page_size  # blocks behind the window are skipped
        tables = self._block_tables(number, slots, firsts, ends)
        return GroupTables(slot_mapping, tables, context_lens - firsts * self._page_size)

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


def _are_equal(one: Ints, other: Ints) -> bool:
    return one is other or np.array_equal(one, other)


def padded_rows(count: int) -> int:
    """Columns of `Batch.rows` in memory, so that each row begins at a multiple of 16 bytes."""
    return count + count % 2


def scratch_batch(
    spans: Sequence[TokenSpan],
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
    table = np.zeros((3, padded_rows(len(positions))), dtype=np.int64)
    table[1, : len(positions)], table[2, : len(positions)] = positions, slots
    rows, none = send([table, positions[:0]], device)
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
