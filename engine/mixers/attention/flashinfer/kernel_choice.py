"""Estimates which of two kernels computes a step's prompt chunks faster. Plain arithmetic, no GPU."""

from __future__ import annotations

from typing import Final

from engine.core.batch.step_inputs import Ints

_FA3_ROWS: Final = 128
"""Queries of one head in an FA3 tile; one multiprocessor computes the tile over its whole context."""
_FA3_GAIN: Final = 2.2
"""Speed of FA3 relative to FA2 with work for every multiprocessor."""
_MERGED: Final = 4
"""Cost of merging one token's partial results, in tokens of context that FA3 attends to in that time."""


def splits_contexts(lengths: Ints, context_lens: Ints, num_heads: int, multiprocessors: int) -> bool:
    """Whether FA2 computes these chunks faster than FA3, because it splits contexts among multiprocessors.

    Otherwise FA3 is faster. But the last tokens of a long prompt, or a small chunk of one, are one query tile
    per head, and 32 tiles keep only a quarter of the multiprocessors busy, for a long time. The constants are
    fitted to an H200.
    """
    tiles = -(-lengths // _FA3_ROWS) * num_heads
    by_fa3 = max(float(tiles @ context_lens) / multiprocessors, float(context_lens.max()))
    packed = lengths * num_heads / _FA3_ROWS
    by_fa2 = _FA3_GAIN * float(packed @ context_lens) / multiprocessors + _MERGED * float(lengths.sum())
    return by_fa2 < by_fa3
