"""A step's inputs as flat arrays, which are also what rank 0 sends to other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.core.plan import Chunk, StepPlan
from engine.core.request_state import NO_SLOT, Save

Ints: TypeAlias = npt.NDArray[np.int64]

_STARTS, _LENGTHS, _SAMPLES = 1, 2, 3
"""Places of fields of `StepInputs`."""
HEADER_INTS: Final = 5
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

    def header(self) -> Ints:
        """R, T, U, P and the length of `states`. R is never 0."""
        counts = (
            len(self.slots),
            len(self.input_ids),
            len(self.moved),
            len(self.pages),
            len(self.states),
        )
        return np.array(counts, dtype=np.int64)

    def payload(self) -> Ints:
        return np.concatenate([getattr(self, field.name) for field in fields(self)])

    @staticmethod
    def payload_ints(header: Ints) -> int:
        """Numbers in the payload behind `header`."""
        return sum(_lengths(header))

    @classmethod
    def unpack(cls, header: Ints, payload: Ints) -> StepInputs:
        """The arrays are views of `payload`."""
        return cls(*np.split(payload, np.cumsum(_lengths(header))[:-1]))


def _lengths(header: Ints) -> list[int]:
    chunks, tokens, moved, pages, states = header.tolist()
    return [chunks] * 5 + [tokens] + [moved] * 2 + [pages, states]


class StepWriter:
    """Converts plans to arrays. Costs O(requests) of Python and one list comparison per request and step."""

    def __init__(self, max_requests: int) -> None:
        self._pages: list[list[int]] = [[] for _ in range(max_requests)]
        """The pages last written for each slot."""

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
        samples = [place is not None for place in outputs]
        table = np.array((slots, starts, lengths, samples, scored), dtype=np.int64)
        if plan.num_drafted:
            drafted = _ints([len(draft) for draft in drafts])
            if by_rows:
                table = _by_rows(table, drafted)
            else:
                table[_SAMPLES] += drafted
        slots_of, starts_of, lengths_of, samples_of, scored_of = table
        return StepInputs(
            slots=slots_of,
            starts=starts_of,
            lengths=lengths_of,
            samples=samples_of,
            scored=scored_of,
            input_ids=_input_ids(chunks),
            moved=_ints([slot for slot, _ in moved]),
            page_counts=_ints([len(pages) for _, pages in moved]),
            pages=_ints([page for _, pages in moved for page in pages]),
            # All requests of a model have a state, or none.
            states=_ints(
                []
                if requests[0].state is None
                else [number for chunk in chunks for row in states_of(chunk) for number in row]
            ),
        )


def _by_rows(table: Ints, drafted: Ints) -> Ints:
    """`StepPlan.rows`, from the first fields of `StepInputs` [5, R] and the drafted tokens of each chunk."""
    counts = 1 + drafted
    table[_LENGTHS, drafted > 0] = 1
    table[_STARTS] -= np.cumsum(counts) - counts
    table = np.repeat(table, counts, axis=1)
    table[_STARTS] += np.arange(table.shape[1])
    return table


def states_of(chunk: Chunk) -> list[tuple[int, ...]]:
    """Of each of `chunk.rows()`, as `StepInputs.states` has it; empty tuples for models without a state."""
    state, following = chunk.request.state, len(chunk.draft)
    if state is None:
        return [()] * (1 + following)
    save = state.saved_by(chunk.start, chunk.end) or Save(chunk.start, NO_SLOT)
    slots = state.read_by(chunk.start), state.slot
    first = (*slots, save.slot, save.position - chunk.start, 1 + following)
    return [first, *[(*slots, NO_SLOT, 0, 0)] * following]


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


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
