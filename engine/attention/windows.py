"""The part of a step's contexts that layers with a window read. Needs only numpy."""

from __future__ import annotations

import numpy as np

from engine.batch.block_tables import BlockTables
from engine.batch.step_inputs import Ints

__all__ = ["within"]


def within(
    window: int | None, query_lens: Ints, context_lens: Ints, tables: BlockTables, page_size: int
) -> tuple[Ints, BlockTables]:
    """Lengths [R] and tables of the contexts without the pages in front that no query of the step sees.

    Queries are a context's last tokens, so masks that count from the end of a context stay valid. Fewer than
    `page_size` tokens in front of the first query's window remain.
    """
    if window is None:
        return context_lens, tables
    skipped = np.maximum(context_lens - query_lens + 1 - window, 0) // page_size
    return context_lens - skipped * page_size, tables.without(skipped)
