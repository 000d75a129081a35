"""Parts of a step's chunks: together they are all rows, each with the tokens that it attends to."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.core.batch.block_tables import starts_of
from engine.mixers.attention.flashinfer.chunk_parts import chunk_parts

CHUNKS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50)), min_size=1, max_size=6)


@given(CHUNKS, st.integers(1, 20))
def test_every_row_is_in_one_part_and_attends_to_the_tokens_until_it(
    chunks: list[tuple[int, int]], most_rows: int
) -> None:
    lengths, before = (np.array(values) for values in zip(*chunks, strict=True))
    expected = [(r, t) for r, (length, start) in enumerate(chunks) for t in range(start, start + length)]

    found, ends = [], [0]
    for part in chunk_parts(starts_of(lengths), lengths + before, most_rows):
        assert part.rows.start == ends[-1]
        assert 0 < part.rows.stop - part.rows.start == part.query_indptr[-1] <= most_rows
        ends.append(part.rows.stop)
        for r, rows, context in zip(
            range(part.first, part.end), np.diff(part.query_indptr), part.context_lens, strict=True
        ):
            found += [(r, t) for t in range(context - rows, context)]

    assert found == expected
