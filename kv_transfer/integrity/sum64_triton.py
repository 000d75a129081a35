"""sum64 as one kernel launch for any number of pages."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kv_transfer.integrity.sum64 import MIX_FACTOR, MIX_OFFSET, SPREAD, STIR_1, STIR_2, Words

_BLOCK = 2048
"""Words of a page per program: 16 a thread."""
_MOST_PAGES = 16
_PROGRAMS = 512
"""With fewer, a GPU is not busy: then programs have fewer pages."""


def page_sums(pool: torch.Tensor, jobs: torch.Tensor, words: Words) -> torch.Tensor:
    """Digests as [n] int64, for `jobs` [n, 2] int32: a page of `pool` and how many of its tokens are valid.

    `pool` is `[page, words.page]`, int32, int16 or uint8. Reads every word once. Most of the about 40 integer
    operations a word are for its weight, which is cheaper to compute than to read. So a program has the same
    words of several pages, which have the same weights.
    """
    blocks = triton.cdiv(words.page, _BLOCK)
    pages = max(1, min(_MOST_PAGES, len(jobs) * blocks // _PROGRAMS))
    sums = torch.zeros(len(jobs), dtype=torch.int64, device=pool.device)
    _page_sums[(triton.cdiv(len(jobs), pages), blocks)](
        pool,
        jobs,
        sums,
        len(jobs),
        pages,
        page_words=words.page,
        row_words=words.row,
        token_words=words.words_per_token,
        heads=words.heads,
        first_head=words.first_head,
        all_heads=words.all_heads,
        word_bits=8 * words.word_bytes,
        mix_offset=MIX_OFFSET,
        mix_factor=MIX_FACTOR,
        spread=SPREAD,
        stir_1=STIR_1,
        stir_2=STIR_2,
        block=_BLOCK,
    )
    return sums


@triton.jit(do_not_specialize=["count", "pages"])  # type: ignore[untyped-decorator]
def _page_sums(  # type: ignore[no-untyped-def]
    pool_ptr,
    jobs_ptr,
    sums_ptr,
    count,
    pages,
    page_words: tl.constexpr,
    row_words: tl.constexpr,
    token_words: tl.constexpr,
    heads: tl.constexpr,
    first_head: tl.constexpr,
    all_heads: tl.constexpr,
    word_bits: tl.constexpr,
    mix_offset: tl.constexpr,
    mix_factor: tl.constexpr,
    spread: tl.constexpr,
    stir_1: tl.constexpr,
    stir_2: tl.constexpr,
    block: tl.constexpr,
):
    first = tl.program_id(0) * pages
    word = tl.program_id(1) * block + tl.arange(0, block)
    within = word % row_words
    row = word // row_words
    row = row // heads * all_heads + first_head + row % heads
    z = (row.to(tl.uint64) * row_words + within.to(tl.uint64) + 1) * spread
    z = (z ^ (z >> 30)) * stir_1
    z = (z ^ (z >> 27)) * stir_2
    weight = (z ^ (z >> 31)) | 1
    for index in tl.range(first, min(first + pages, count), num_stages=3):
        page = tl.load(jobs_ptr + 2 * index).to(tl.int64)
        valid_words = tl.load(jobs_ptr + 2 * index + 1) * token_words
        valid = (word < page_words) & (within < valid_words)
        value = tl.load(pool_ptr + page * page_words + word, mask=valid, other=0)
        # Via int64, which sign-extends every word type; the mask removes the sign extension.
        value = (value.to(tl.int64) & ((1 << word_bits) - 1)).to(tl.uint64)
        mixed = (value + mix_offset) * mix_factor
        mixed = mixed ^ (mixed >> 32)
        part = tl.sum(tl.where(valid, weight * mixed, 0), axis=0)
        # Sums modulo 2**64 do not depend on the order of the programs.
        tl.atomic_add(sums_ptr + index, part.to(tl.int64, bitcast=True), sem="relaxed")
