"""Hashes that name the whole pages of a token sequence, each with all that is before it.

A worker reports by these hashes which pages its prefix cache has, and a router finds a prompt's longest
cached prefix with them. After vLLM's hash chain of KV blocks. 64 bits: a collision sends a request to a
worker that must compute its prompt after all, and has no other consequence: workers compare tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

BlockHash: TypeAlias = int
"""64 bits, unsigned."""


def block_hashes(tokens: Sequence[int], page_size: int, after: BlockHash | None = None) -> list[BlockHash]:
    """One hash per full page of `tokens`; a partial last page is not hashed.

    `after` is the hash of the page before them; None: they begin the sequence. O(tokens).
    """
    data = memoryview(array("I", tokens)).cast("B")
    stride = 4 * page_size
    hashes: list[BlockHash] = []
    seed = page_size if after is None else after
    for start in range(0, len(tokens) // page_size * stride, stride):
        seed = xxh3_64_intdigest(data[start : start + stride], seed)
        hashes.append(seed)
    return hashes
