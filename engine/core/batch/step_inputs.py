"""A step's inputs as flat arrays, which are also what rank 0 sends to other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.core.plan import Chunk, StepPlan
from engine.core.request_state import NO_SLOT, CheckpointSave

Ints: TypeAlias = npt.NDArray[np.int64]

_NONE: Final[Ints] = np.empty(0, dtype=np.int64)
HEADER_INTS: Final = 7
"""Length of a packed step's header."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """R chunks with T tokens in total, and the block tables that changed: U, with P pages in total."""

    slots: Ints
    """[R]"""
    starts: Ints
    """[R]: absolute position of a chunk's first token."""
    lengths: Ints
    """[R]"""
    samples: Ints
    """[R]: number of rows that sample a token, which are the last ones; more than 1 in a verify chunk."""
    scored: Ints
    """[R]: number of rows that are scored, which are the last ones but for a row that samples."""
    input_ids: Ints
    """[T], some of them PENDING."""
    moved: Ints
    """[U]: slots whose block table has changed since the previous step."""
    page_counts: Ints
    """[U]: number of pages of each changed table."""
    pages: Ints
    """[P]: pages of the changed tables, one table after another."""
    states: Ints
    """[5 * R], or empty for models without a recurrent state: of each chunk the slot of the state that it
    reads, that it writes, and of the checkpoint that it saves, or NO_SLOT; rows until it saves; and the
    rows of one request that follow one another singly: those of a verify chunk at its first one, 0 at its
    others, 1 elsewhere."""
    adapters: Ints = field(default_factory=lambda: _NONE)
    """[2 * R], or empty for models that take no adapters: the slot of each chunk's adapter, or -1; and the
    positions from which its request is computed with the adapter."""
    media: Ints = field(default_factory=lambda: _NONE)
    """`MediaLayout.packed`: where rows of images are; empty: the step is one of text."""

    @property
    def num_chunks(self) -> int:
        """Number of chunks with more than one token, which come first."""
        return int(np.count_nonzero(self.lengths > 1))

    def header(self) -> Ints:
        """R, T, U, P and the lengths of `states`, `adapters` and `media`. R is never 0."""
        counts = (
            len(self.slots),
            len(self.input_ids),
            len(self.moved),
            len(self.pages),
            len(self.states),
            len(self.adapters),
            len(self.media),
        )
        return np.array(counts, dtype=np.int64)

    def payload(self) -> Ints:
        return np.concatenate([getattr(self, part.name) for part in fields(self)])

    @staticmethod
    def payload_ints(header: Ints) -> int:
        """Numbers in the payload after `header`."""
        return sum(_lengths(header))

    @classmethod
    def unpack(cls, header: Ints, payload: Ints) -> StepInputs:
        """The arrays are views of `payload`."""
        return cls(*np.split(payload, np.cumsum(_lengths(header))[:-1]))


def _lengths(header: Ints) -> list[int]:
    chunks, tokens, moved, pages, *others = header.tolist()
    return [chunks] * 5 + [tokens] + [moved] * 2 + [pages, *others]


class _Shape(NamedTuple):
    """Shape of a plan: its chunks, without how far they are. All but `slots` in the order of `StepInputs`."""

    slots: tuple[int, ...]
    lengths: tuple[int, ...]
    samples: tuple[bool, ...]
    scored: tuple[int, ...]
    drafted: tuple[int, ...]
    """Tokens of their drafts."""
    by_rows: bool


class _Layout:
    """What steps of one shape have in common. Their arrays are the same objects, which nothing changes."""

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        table, drafted = np.array(shape[:4], dtype=np.int64), _ints(shape.drafted)
        self.rows_of: tuple[Ints, Ints] | None = None
        """[R] each: the chunk of a row, and its place there; None: each chunk is written as it is."""
        if shape.by_rows and any(shape.drafted):  # as `StepPlan.rows`
            counts = 1 + drafted
            owners = np.repeat(np.arange(len(counts)), counts)
            self.rows_of = owners, np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]
            table[1, drafted > 0] = 1
            table = table[:, owners]
        else:
            table[2] += drafted
        self.slots, self.lengths, self.samples, self.scored = table

    def starts(self, starts: Sequence[int]) -> Ints:
        """[R]: from those of the chunks."""
        begins = _ints(starts)
        return begins if self.rows_of is None else self.of_rows(begins) + self.rows_of[1]

    def of_rows(self, values: Ints) -> Ints:
        """[R]: from a value of each chunk."""
        return values if self.rows_of is None else values[self.rows_of[0]]


class StepWriter:
    """Converts plans to arrays. Costs O(requests) of Python and one list comparison per request and step."""

    def __init__(self, max_requests: int, *, adapters: bool = False) -> None:
        """`adapters`: whether the model takes them."""
        self._adapters = adapters
        self._pages: list[list[int]] = [[] for _ in range(max_requests)]
        """The pages last written for each slot."""
        self._layout: _Layout | None = None
        """Layout of the last step: most steps have the same one."""

    def write(self, plan: StepPlan, *, by_rows: bool = True) -> StepInputs:
        """`by_rows`: a verify chunk is written as one decode for each of its tokens, else as it is."""
        chunks = plan.chunks
        requests, slots, starts, lengths, outputs, scored, _, _, drafts = zip(*chunks, strict=True)
        moved = [
            (slot, request.pages.copy())
            for request, slot in zip(requests, slots, strict=True)
            if request.pages != self._pages[slot]
        ]
        for slot, pages in moved:
            self._pages[slot] = pages
        samples = tuple([place is not None for place in outputs])
        shape = _Shape(slots, lengths, samples, scored, tuple(map(len, drafts)), by_rows)
        layout = self._layout
        if layout is None or layout.shape != shape:
            layout = self._layout = _Layout(shape)
        return StepInputs(
            slots=layout.slots,
            starts=layout.starts(starts),
            lengths=layout.lengths,
            samples=layout.samples,
            scored=layout.scored,
            input_ids=_input_ids(chunks),
            moved=_ints([slot for slot, _ in moved]),
            page_counts=_ints([len(pages) for _, pages in moved]),
            pages=_ints([page for _, pages in moved for page in pages]),
            # All requests of a model have a state, or none.
            states=_NONE
            if requests[0].state is None
            else _ints([number for chunk in chunks for row in states_of(chunk) for number in row]),
            adapters=np.concatenate(
                [
                    layout.of_rows(_ints([request.adapter_slot for request in requests])),
                    layout.of_rows(_ints([request.adapter_start or 0 for request in requests])),
                ]
            )
            if self._adapters
            else _NONE,
        )


def states_of(chunk: Chunk) -> list[tuple[int, ...]]:
    """State slots of each of `chunk.rows()`, as `StepInputs.states` has them; empty tuples for models without
    a state.
    """
    state, following = chunk.request.state, len(chunk.draft)
    if state is None:
        return [()] * (1 + following)
    save = state.saved_by(chunk.start, chunk.end) or CheckpointSave(chunk.start, NO_SLOT)
    slots = state.read_by(chunk.start), state.slot
    first = (*slots, save.slot, save.position - chunk.start, 1 + following)
    return [first, *[(*slots, NO_SLOT, 0, 0)] * following]


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64) if values else _NONE


def _input_ids(chunks: Sequence[Chunk]) -> Ints:
    """Token ids of all chunks, [T]. Chunks of more than one token come first."""
    prompts: list[Ints] = []
    others: list[int] = []
    for chunk in chunks:
        request, start, draft = chunk.request, chunk.start, chunk.draft
        if chunk.length > 1 and not draft:
            prompts.append(np.asarray(request.tokens(start, chunk.end)))
        else:
            others.append(request.token(start))
            others += draft
    return np.concatenate([*prompts, _ints(others)]) if prompts else _ints(others)
