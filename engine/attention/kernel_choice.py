"""Which of two kernels computes a step's prompt chunks sooner: arithmetic, without either of them."""

from __future__ import annotations

from typing import Final

from engine.batch.batch import Ints

__all__ = ["splits_contexts"]

_FA3_ROWS: Final = 128
"""Queries of one head that FA3 gives to one multiprocessor, with all of their context."""
_FA3_GAIN: Final = 2.2
"""How much faster than FA2 it is where there is work for every multiprocessor."""
_MERGED: Final = 4
"""Tokens of context that FA3 attends to while the parts of one token's results are merged."""


def splits_contexts(lengths: Ints, context_lens: Ints, num_heads: int, multiprocessors: int) -> bool:
    """Whether FA2 computes these chunks faster than FA3, since it shares a context among multiprocessors.

    FA3 is faster at everything else. But the last tokens of a long prompt, or a small step's worth of it,
    are one tile of queries a head: 32 of them keep a quarter of the multiprocessors busy, and for long.
    The constants are fitted to an H200 (`python -m benchmarks.gpu_chunks`).
    """
    tiles = -(-lengths // _FA3_ROWS) * num_heads
    by_fa3 = max(float(tiles @ context_lens) / multiprocessors, float(context_lens.max()))
    packed = lengths * num_heads / _FA3_ROWS
    by_fa2 = _FA3_GAIN * float(packed @ context_lens) / multiprocessors + _MERGED * float(lengths.sum())
    return by_fa2 < by_fa3
