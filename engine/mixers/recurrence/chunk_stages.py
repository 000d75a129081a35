"""A step's chunks as one or two batches of sequences, each of which goes from one state to the next.

A chunk that saves a checkpoint is two sequences, of which the second begins with the state that was saved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.core.batch.block_tables import starts_of
from engine.core.batch.step_inputs import Ints
from engine.core.request_state import NO_SLOT


@dataclass(frozen=True, slots=True)
class ChunkStage:
    """S sequences."""

    rows: Ints | None
    """[N]: their rows of the step; None: all rows of chunks, in order."""
    indptr: Ints
    """[S + 1]: where each begins."""
    sources: Ints
    """[S]: slots of the states that they begin with; NO_SLOT: empty ones."""
    ended: Ints
    """[K]: numbers of sequences whose last states are kept."""
    slots: Ints
    """[K]: where."""


def chunk_stages(
    query_indptr: Ints, sources: Ints, saves: Ints, save_rows: Ints, slots: Ints
) -> list[ChunkStage]:
    """The stages of R chunks, of the rows `query_indptr` [R + 1]; the rest [R], as in `StateBatch`."""
    firsts, lengths = query_indptr[:-1], np.diff(query_indptr)
    inside = (saves != NO_SLOT) & (save_rows < lengths)
    heads = np.where(inside, save_rows, lengths)
    saved = np.flatnonzero(saves != NO_SLOT)
    whole, cut = np.flatnonzero(~inside), np.flatnonzero(inside)
    first = ChunkStage(
        rows=_rows(firsts, heads) if len(cut) else None,
        indptr=starts_of(heads),
        sources=sources,
        ended=np.concatenate([saved, whole]),
        slots=np.concatenate([saves[saved], slots[whole]]),
    )
    if not len(cut):
        return [first]
    tails = (lengths - heads)[cut]
    second = ChunkStage(
        rows=_rows((firsts + heads)[cut], tails),
        indptr=starts_of(tails),
        sources=saves[cut],
        ended=np.arange(len(cut)),
        slots=slots[cut],
    )
    return [first, second]


def _rows(firsts: Ints, lengths: Ints) -> Ints:
    """Consecutive rows from each of `firsts`, one range after another."""
    starts = starts_of(lengths)
    return np.arange(starts[-1]) + np.repeat(firsts - starts[:-1], lengths)
