"""A kernel that copies words, also from and to pinned host memory."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(  # type: ignore[untyped-decorator]
    # One compilation for each type of word: another would take 0.1 s of a step.
    do_not_specialize=["size"],
    do_not_specialize_on_alignment=["target_ptr", "source_ptr"],
)
def copy_words(target_ptr, source_ptr, size, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(target_ptr + at, tl.load(source_ptr + at, mask=at < size), mask=at < size)
