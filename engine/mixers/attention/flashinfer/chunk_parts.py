"""Cuts the chunks of a step into parts for a kernel with room for a limited number of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.core.batch.block_tables import starts_of
from engine.core.batch.step_inputs import Ints


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """Consecutive rows of a step, of the requests [first, end)."""

    rows: slice
    first: int
    end: int
    query_indptr: Ints
    """[end - first + 1]: where each request's rows begin, within the part."""
    context_lens: Ints
    """[end - first]: tokens that the last row of each request attends to."""


def chunk_parts(query_indptr: Ints, context_lens: Ints, most_rows: int) -> list[ChunkPart]:
    """Parts of at most `most_rows` rows. What a part has of a chunk attends to the tokens before its own end.

    `query_indptr` [R + 1] and `context_lens` [R]: as in Batch.
    """
    begins, ends, total = query_indptr[:-1], query_indptr[1:], int(query_indptr[-1])
    parts = []
    for begin in range(0, total, most_rows):
        end = min(begin + most_rows, total)
        inside = np.flatnonzero((begins < end) & (ends > begin))
        first, last = int(inside[0]), int(inside[-1]) + 1
        tops = np.minimum(ends[first:last], end)
        lengths = tops - np.maximum(begins[first:last], begin)
        contexts = context_lens[first:last] - (ends[first:last] - tops)
        parts.append(ChunkPart(slice(begin, end), first, last, starts_of(lengths), contexts))
    return parts
