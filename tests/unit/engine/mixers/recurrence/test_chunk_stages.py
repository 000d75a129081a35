"""The stages of a step's chunks leave the states that running each chunk row by row leaves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from engine.core.batch.block_tables import starts_of
from engine.core.request_state import NO_SLOT
from engine.mixers.recurrence.chunk_stages import chunk_stages

CHUNKS = st.lists(
    st.tuples(st.integers(1, 9), st.booleans(), st.none() | st.integers(1, 9)), min_size=1, max_size=6
)
"""Rows of a chunk, whether it continues a state, and the rows after which a checkpoint is saved."""

Values = npt.NDArray[np.float64]


def following(state: float, row: float) -> float:
    """A state that depends on the order of rows."""
    return state / 2 + row


@given(CHUNKS)
def test_states_are_those_of_each_chunk_row_by_row(chunks: list[tuple[int, bool, int | None]]) -> None:
    count = len(chunks)
    lengths = np.array([rows for rows, _, _ in chunks])
    save_rows = np.array([min(rows, at or 0) for rows, _, at in chunks])
    saves = np.array([NO_SLOT if at is None else 2 * count + r for r, (_, _, at) in enumerate(chunks)])
    sources = np.array([r if continues else NO_SLOT for r, (_, continues, _) in enumerate(chunks)])
    slots = np.arange(count, 2 * count)
    indptr = starts_of(lengths)
    rows = np.arange(1.0, indptr[-1] + 1)
    states, expected = (np.full(3 * count, np.nan) for _ in range(2))
    states[:count] = expected[:count] = np.arange(count) * 100.0
    outs, expected_outs = (np.full(len(rows), np.nan) for _ in range(2))
    for r in range(count):
        state = expected[sources[r]] if sources[r] != NO_SLOT else 0.0
        for number, row in enumerate(range(indptr[r], indptr[r + 1]), start=1):
            state = expected_outs[row] = following(state, rows[row])
            if saves[r] != NO_SLOT and number == save_rows[r]:
                expected[saves[r]] = state
        expected[slots[r]] = state

    for stage in chunk_stages(indptr, sources, saves, save_rows, slots):
        own = np.arange(len(rows)) if stage.rows is None else stage.rows
        assert stage.indptr[-1] == len(own)
        befores = [0.0 if source == NO_SLOT else states[source] for source in stage.sources]
        afters = []
        for before, begin, end in zip(befores, stage.indptr, stage.indptr[1:], strict=False):
            for row in own[begin:end]:
                before = outs[row] = following(before, rows[row])
            afters.append(before)
        for number, slot in zip(stage.ended, stage.slots, strict=True):
            states[slot] = afters[number]

    np.testing.assert_array_equal(states, expected)
    np.testing.assert_array_equal(outs, expected_outs)
