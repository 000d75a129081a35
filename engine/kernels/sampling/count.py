"""Counts tokens for penalties that were not sampled where they are counted: those of verify chunks."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.sampling.tiles import ONE_COUNT, bitmap_of


@triton.jit  # type: ignore[untyped-decorator]
def count(said_ptr, marks_ptr, bitmap_ptr, vocab: tl.constexpr):  # type: ignore[no-untyped-def]
    """Grid (tokens,). `said_ptr`: [tokens, 2] int64, slots and tokens; a pair may be there several times."""
    pair = said_ptr + tl.program_id(0) * 2
    slot, token = tl.load(pair), tl.load(pair + 1)
    tl.atomic_add(marks_ptr + slot * vocab + token, ONE_COUNT)
    tl.atomic_or(bitmap_of(bitmap_ptr, slot, vocab) + (token >> 5), (1 << (token & 31)).to(tl.int32))
