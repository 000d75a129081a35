"""Builds a forward pass's flat arrays from a step's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    input_ids: torch.Tensor
    """[T] int64. Rows in `pending_rows` are still to be filled from `pending_slots`."""
    positions: torch.Tensor
    """[T] int64, counted from the start of the request."""

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
    def num_requests(self) -> int:
        return len(self.context_lens)


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
        shape = (len(groups), max_requests, -(-max_model_len // page_size))
        self._tables = np.full(shape, scratch_page, dtype=np.int64)

    def build(self, inputs: StepInputs) -> Batch:
        page_size = self._page_size
        slots, starts, lengths = inputs.slots, inputs.starts, inputs.lengths
        context_lens = starts + lengths
        indptr = starts_of(lengths)

        self._refresh_tables(inputs)
        owner = np.repeat(np.arange(len(slots)), lengths)
        positions = np.arange(indptr[-1]) + (starts - indptr[:-1])[owner]
        block, offset = np.divmod(positions, page_size)
        skipped = [self._skipped(group, starts) for group in self._groups]
        tables = [
            self._block_tables(number, slots, first, -(-context_lens // page_size))
            for number, first in enumerate(skipped)
        ]
        slot_mappings = [
            lists.pages[(lists.indptr[:-1] - first)[owner] + block] * page_size + offset
            for lists, first in zip(tables, skipped, strict=True)
        ]

        pending = np.flatnonzero(inputs.input_ids == PENDING)
        input_ids = inputs.input_ids
        input_ids[pending] = 0
        scored = _last_rows(indptr[1:] - inputs.samples, inputs.scored)
        sampled = _last_rows(indptr[1:], inputs.samples)
        rows = [sampled, np.repeat(slots, inputs.samples), scored, pending, slots[owner[pending]]]
        sent = send([input_ids, positions, *rows, *slot_mappings], self._device)
        states, verified = StateBatch.of(inputs.states), None
        if states is not None:
            firsts = states.verified  # each row of which samples
            samples = np.repeat(np.cumsum(inputs.samples), lengths)
            verified = VerifiedRows.of(indptr[firsts], states.runs[firsts], samples, self._device)
        return Batch(
            input_ids=sent[0],
            positions=sent[1],
            num_chunks=int(np.count_nonzero(lengths > 1)),
            query_indptr=indptr,
            context_lens=context_lens,
            groups=[
                GroupTables(slot_mapping, lists, context_lens - first * page_size)
                for slot_mapping, lists, first in zip(sent[7:], tables, skipped, strict=True)
            ],
            sample_rows=sent[2],
            sample_slots=sent[3],
            scored_rows=sent[4],
            pending_rows=sent[5],
            pending_slots=sent[6],
            states=states,
            verified=verified,
        )

    def _skipped(self, group: KVGroup, starts: Ints) -> Ints:
        """[R]: blocks behind the window of the first token."""
        if group.window is None:
            return np.zeros_like(starts)
        return np.maximum(starts + 1 - group.window, 0) // self._page_size

    def _block_tables(self, group: int, slots: Ints, firsts: Ints, ends: Ints) -> BlockTables:
        tables = self._tables[group]
        rows = zip(slots.tolist(), firsts.tolist(), ends.tolist(), strict=True)
        return BlockTables(
            np.concatenate([tables[slot, first:end] for slot, first, end in rows]), starts_of(ends - firsts)
        )

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
    sent = send([np.zeros_like(positions), positions, slots, positions[:0]], device)
    counts = -(-context_lens // page_size)
    tables = BlockTables(np.full(counts.sum(), scratch_page, dtype=np.int64), starts_of(counts))
    return Batch(
        input_ids=sent[0],
        positions=sent[1],
        num_chunks=int(np.count_nonzero(lengths > 1)),
        query_indptr=starts_of(lengths),
        context_lens=context_lens,
        groups=[GroupTables(sent[2], tables, context_lens)] * num_groups,
        sample_rows=sent[3],
        sample_slots=sent[3],
        scored_rows=sent[3],
        pending_rows=sent[3],
        pending_slots=sent[3],
        states=None if scratch_slot is None else _scratch_states(len(spans), scratch_slot),
    )


def _scratch_states(count: int, slot: int) -> StateBatch:
    none, rows = np.full(count, NO_SLOT), np.zeros(count, dtype=np.int64)
    return StateBatch(none, np.full(count, slot), none, rows, rows + 1)
