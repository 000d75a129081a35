"""sum64 in plain torch, on any device: the oracle of the kernel.

torch has little unsigned arithmetic. Signed numbers wrap around in the same way; only right shifts have to
mask the copies of the sign bit.
"""

from __future__ import annotations

import torch

from kv_transfer.integrity.sum64 import MIX_FACTOR, MIX_OFFSET, SPREAD, STIR_1, STIR_2, Words


def page_sums(pool: torch.Tensor, jobs: torch.Tensor, words: Words) -> torch.Tensor:
    """Digests as [n] int64, for `jobs` [n, 2] int32: a page of `pool` and how many of its tokens are valid.

    `pool` is `[page, words.page]`, int32, int16 or uint8. Takes 24 bytes of memory for each word.
    """
    page, tokens = jobs.long().unbind(1)
    rows = pool[page].view(-1, words.rows, words.row).long() & (1 << 8 * words.word_bytes) - 1
    mixed = (rows + _signed(MIX_OFFSET)) * _signed(MIX_FACTOR)
    mixed = (mixed ^ _shifted(mixed, 32)) * _weights(words, pool.device)
    valid = torch.arange(words.row, device=pool.device) < (tokens * words.words_per_token)[:, None]
    return torch.where(valid[:, None], mixed, 0).sum(dim=(1, 2))


def _weights(words: Words, device: torch.device) -> torch.Tensor:
    index = torch.arange(words.rows, device=device)
    row = index // words.heads * words.all_heads + words.first_head + index % words.heads
    position = row[:, None] * words.row + torch.arange(words.row, device=device)
    z = (position + 1) * _signed(SPREAD)
    z = (z ^ _shifted(z, 30)) * _signed(STIR_1)
    z = (z ^ _shifted(z, 27)) * _signed(STIR_2)
    return (z ^ _shifted(z, 31)) | 1


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    return (z >> bits) & (1 << 64 - bits) - 1


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >> 63 else constant
