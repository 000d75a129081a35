"""sum64 as one kernel launch for any number of pages."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kv_transfer.integrity.sum64 import MIX_FACTOR, MIX_OFFSET, SPREAD, STIR_1, STIR_2, Words

_BLOCK = 1024
_ROUNDS = 8
"""Blocks of a page per program: 32 KiB in words of 4 bytes."""


def page_sums(pool: torch.Tensor, jobs: torch.Tensor, words: Words) -> torch.Tensor:
    """Digests as [n] int64, for `jobs` [n, 2] int32: a page of `pool` and how many of its tokens are valid.

    `pool` is `[page, words.page]`, int32, int16 or uint8. Reads every word once; about 40 integer operations
    a word, most of them for its weight, which is cheaper to compute than to read.
    """
    sums = torch.zeros(len(jobs), dtype=torch.int64, device=pool.device)
    _page_sums[(len(jobs), triton.cdiv(words.page, _BLOCK * _ROUNDS))](
        pool,
        jobs,
        sums,
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
        rounds=_ROUNDS,
    )
    return sums


@triton.jit  # type: ignore[untyped-decorator]
def _page_sums(  # type: ignore[no-untyped-def]
    pool_ptr,
    jobs_ptr,
    sums_ptr,
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
    rounds: tl.constexpr,
):
    index = tl.program_id(0)
    page = tl.load(jobs_ptr + 2 * index).to(tl.int64)
    valid_words = tl.load(jobs_ptr + 2 * index + 1) * token_words
    lane = tl.arange(0, block)
    begin = tl.program_id(1) * (block * rounds)
    # Added across lanes only at the end: a reduction in every round would wait for its loads.
    sums = tl.zeros((block,), dtype=tl.uint64)
    for start in tl.range(0, block * rounds, block):
        word = begin + start + lane
        within = word % row_words
        valid = (word < page_words) & (within < valid_words)
        row = word // row_words
        row = row // heads * all_heads + first_head + row % heads
        z = (row.to(tl.uint64) * row_words + within.to(tl.uint64) + 1) * spread
        z = (z ^ (z >> 30)) * stir_1
        z = (z ^ (z >> 27)) * stir_2
        weight = (z ^ (z >> 31)) | 1
        value = tl.load(pool_ptr + page * page_words + word, mask=valid, other=0)
        # Via int64, which sign-extends every word type; the mask removes the sign extension.
        value = (value.to(tl.int64) & ((1 << word_bits) - 1)).to(tl.uint64)
        mixed = (value + mix_offset) * mix_factor
        mixed = mixed ^ (mixed >> 32)
        sums += tl.where(valid, weight * mixed, 0)
    # Sums modulo 2**64 do not depend on the order of the programs.
    tl.atomic_add(sums_ptr + index, tl.sum(sums, axis=0).to(tl.int64, bitcast=True), sem="relaxed")
