"""From a step's plan to the flat arrays that a forward pass reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from engine.plan import Chunk, StepPlan
from engine.request import PENDING
from engine.staging import send

__all__ = ["Batch", "BatchBuilder", "Ints", "scratch_batch"]

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass: T tokens of R requests, in the plan's order, of which S rows sample.

    Requests with several tokens come first, then those with one. Tensors are on the device; arrays stay
    on the host, where backends plan with them.
    """

    input_ids: torch.Tensor
    """[T] int64. Rows in `pending_rows` are still to be filled from `pending_slots`."""
    positions: torch.Tensor
    """[T] int64, counted from the start of the request."""
    slot_mapping: torch.Tensor
    """[T] int64: page * page_size + offset, where each token's key and value go."""

    num_chunks: int
    """Requests with more than one token; the other R - num_chunks decode."""
    query_indptr: Ints
    """[R + 1]: request r owns rows query_indptr[r] to query_indptr[r + 1]."""
    context_lens: Ints
    """[R]: tokens that the last row of a request attends to, itself included."""
    block_tables: Ints
    """[R, widest]: pages of each request, then the scratch page."""

    sample_rows: torch.Tensor
    """[S] int64: rows whose hidden state predicts a token."""
    sample_slots: torch.Tensor
    """[S] int64: the requests' slots."""
    pending_rows: torch.Tensor
    """Rows whose input token was sampled by the step before and is known to the device alone."""
    pending_slots: torch.Tensor

    @property
    def num_requests(self) -> int:
        return len(self.context_lens)


class BatchBuilder:
    """Builds batches. Work per step is O(requests) in Python and O(tokens) in numpy.

    Block tables live in one array with a row a slot. A row is rewritten only when the request's pages are
    no longer those it was written from, so a decode costs a list comparison.
    """

    def __init__(
        self,
        *,
        page_size: int,
        max_requests: int,
        max_model_len: int,
        scratch_page: int,
        device: torch.device,
    ) -> None:
        self._page_size = page_size
        self._scratch = scratch_page
        self._device = device
        self._tables = np.full((max_requests, -(-max_model_len // page_size)), scratch_page, dtype=np.int64)
        self._pages: list[list[int]] = [[] for _ in range(max_requests)]

    def build(self, plan: StepPlan) -> Batch:
        chunks = plan.chunks
        page_size = self._page_size
        slots = np.array([chunk.request.slot for chunk in chunks], dtype=np.int64)
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        lengths = np.array([chunk.length for chunk in chunks], dtype=np.int64)
        context_lens = starts + lengths
        indptr = np.zeros(len(chunks) + 1, dtype=np.int64)
        np.cumsum(lengths, out=indptr[1:])

        for chunk in chunks:
            self._refresh_table(chunk)
        widest = -(-int(context_lens.max()) // page_size)
        tables = self._tables[slots, :widest]

        owner = np.repeat(np.arange(len(chunks)), lengths)
        positions = np.arange(indptr[-1]) + (starts - indptr[:-1])[owner]
        page, offset = np.divmod(positions, page_size)
        slot_mapping = tables[owner, page] * page_size + offset

        sampling = np.array([chunk.output_index is not None for chunk in chunks], dtype=np.bool_)
        input_ids = _input_ids(chunks, indptr)
        pending = np.flatnonzero(input_ids == PENDING)
        input_ids[pending] = 0
        tokens = [input_ids, positions, slot_mapping]
        rows = [indptr[1:][sampling] - 1, slots[sampling], pending, slots[owner[pending]]]
        sent = send([*tokens, *rows], self._device)
        return Batch(
            input_ids=sent[0],
            positions=sent[1],
            slot_mapping=sent[2],
            num_chunks=int(np.count_nonzero(lengths > 1)),
            query_indptr=indptr,
            context_lens=context_lens,
            block_tables=tables,
            sample_rows=sent[3],
            sample_slots=sent[4],
            pending_rows=sent[5],
            pending_slots=sent[6],
        )

    def _refresh_table(self, chunk: Chunk) -> None:
        pages = chunk.request.pages
        slot = chunk.request.slot
        if pages != self._pages[slot]:
            row = self._tables[slot]
            row[: len(pages)] = pages
            row[len(pages) :] = self._scratch
            self._pages[slot] = pages.copy()


def scratch_batch(num_tokens: int, scratch_page: int, page_size: int, device: torch.device) -> Batch:
    """One prompt of so many tokens, all of whose pages are the scratch page: a rehearsal."""
    positions = np.arange(num_tokens)
    slots = scratch_page * page_size + positions % page_size
    sent = send([np.zeros_like(positions), positions, slots, positions[:0]], device)
    return Batch(
        input_ids=sent[0],
        positions=sent[1],
        slot_mapping=sent[2],
        num_chunks=1 if num_tokens > 1 else 0,
        query_indptr=np.array([0, num_tokens], dtype=np.int64),
        context_lens=np.array([num_tokens], dtype=np.int64),
        block_tables=np.full((1, -(-num_tokens // page_size)), scratch_page, dtype=np.int64),
        sample_rows=sent[3],
        sample_slots=sent[3],
        pending_rows=sent[3],
        pending_slots=sent[3],
    )


def _input_ids(chunks: list[Chunk], indptr: Ints) -> Ints:
    """Token ids of all chunks, [T], some of them PENDING."""
    ids = np.empty(indptr[-1], dtype=np.int64)
    begin = 0
    for chunk in chunks:
        end = begin + chunk.length
        ids[begin:end] = chunk.request.tokens(chunk.start, chunk.end)
        begin = end
    return ids
