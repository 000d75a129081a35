"""Hashes that name the whole pages of a sequence, each with all that is before it and its namespace.

A worker reports by these hashes which pages its prefix cache has, and a router finds a prompt's longest
cached prefix with them. After vLLM's hash chain of KV blocks. 64 bits: a collision sends a request to a
worker that must compute its prompt after all, and has no other consequence: workers compare keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

from common.origin import NO_NAMESPACE, Namespace

BlockHash: TypeAlias = int
"""64 bits, unsigned."""


def root_hash(page_size: int, namespace: Namespace = NO_NAMESPACE) -> BlockHash:
    """The hash before the first page of every sequence of a namespace."""
    return xxh3_64_intdigest(namespace, page_size) if namespace else page_size


def block_hashes(keys: Sequence[int], page_size: int, after: BlockHash | None = None) -> list[BlockHash]:
    """One hash per full page of `keys`; a partial last page is not hashed.

    `keys`: an array of 64 bits each, or tokens. `after`: the hash of the page before them, or a `root_hash`;
    None: that of no namespace. O(keys).
    """
    data = memoryview(keys if isinstance(keys, array) else array("Q", keys)).cast("B")
    stride = 8 * page_size
    hashes: list[BlockHash] = []
    seed = root_hash(page_size) if after is None else after
    for start in range(0, len(keys) // page_size * stride, stride):
        seed = xxh3_64_intdigest(data[start : start + stride], seed)
        hashes.append(seed)
    return hashes
