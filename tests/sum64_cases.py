"""Layouts and pools that the implementations of sum64 have to agree on."""

from __future__ import annotations

from dataclasses import replace

import torch

from common.kv_groups import full_group
from kv_transfer import KVLayout
from kv_transfer.integrity.sum64 import MASK, HostSum64, Words
from kv_transfer.layout import SUM64
from tests.kv_support import Pool

_LLAMA = KVLayout(
    model="m",
    dtype="bfloat16",
    groups=full_group(3),
    num_kv_heads=4,
    head_dim=64,
    page_size=16,
    digest=SUM64,
)
LAYOUTS = [
    _LLAMA,
    replace(_LLAMA, dtype="float32", head_dim=4, page_size=4),
    replace(_LLAMA, dtype="float16", head_dim=80, page_size=1),
    replace(_LLAMA, head_dim=5, page_size=3),  # words of 2 bytes
    replace(_LLAMA, dtype="float8_e4m3fn", head_dim=7),  # words of 1 byte
    replace(_LLAMA, tp_size=2, tp_rank=1),
    replace(_LLAMA, tp_size=8, tp_rank=5),  # more ranks than heads
]
NUM_PAGES = 6

_TORCH = {4: torch.int32, 2: torch.int16, 1: torch.uint8}


def name_of(layout: KVLayout) -> str:
    return f"{layout.dtype}-{layout.head_dim}x{layout.page_size}-tp{layout.tp_rank}of{layout.tp_size}"


def pool_of(layout: KVLayout) -> Pool:
    """Pages of random bytes, one of zeros and one of ones, where no bit is 0."""
    pool = Pool(NUM_PAGES, layout)
    pool.fill(range(NUM_PAGES))
    pool.bytes[1] = 0
    pool.bytes[2] = 0xFF
    return pool


def as_words(pool: Pool) -> torch.Tensor:
    """As `page_sums` takes it; shares the pool's memory."""
    return torch.from_numpy(pool.bytes).view(_TORCH[Words.of(pool.layout).word_bytes])


def jobs_for(layout: KVLayout) -> torch.Tensor:
    """Every page, to different lengths."""
    fills = [max(1, layout.page_size - index) for index in range(NUM_PAGES)]
    return torch.tensor(list(zip(range(NUM_PAGES), fills, strict=True)), dtype=torch.int32)


def reference(pool: Pool, jobs: torch.Tensor) -> list[int]:
    digester = HostSum64(pool.memory, pool.layout)
    return [digester.digest([page], tokens)[0] for page, tokens in jobs.tolist()]


def unsigned(sums: torch.Tensor) -> list[int]:
    return [value & MASK for value in sums.tolist()]
