"""Keys that name the whole blocks of a sequence for good: the content address of their KV.

Unlike `block_hash`, whose collisions only cost time, a key decides which KV a request reads. It is therefore
a cryptographic hash (BLAKE2b, 256 bits), of the keys of the block's positions (see `origin`) and of the key
of the block before it; the first one follows a key that stands for the model's weights, the layout of its
pages and the request's namespace.

The KV of a block has parts of a page each, which a tier keeps and loses one by one: a page for every group of
layers, and after them the pages of the recurrent state after the block, if the model has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

from common.origin import Namespace
from common.token_array import token_array

BlockKey: TypeAlias = bytes
PageKey: TypeAlias = bytes
"""A block's key, and the number of the part."""

_KEY_BYTES: Final = 32
PAGE_KEY_BYTES: Final = _KEY_BYTES + 2


def root_key(identity: str) -> BlockKey:
    """The key before a sequence's first block. `identity`: of the weights and of the layout of pages."""
    return blake2b(identity.encode(), digest_size=_KEY_BYTES).digest()


def namespace_key(root: BlockKey, namespace: Namespace) -> BlockKey:
    """The key before the first block of every sequence of a namespace. `root`: see `root_key`."""
    return blake2b(root + namespace, digest_size=_KEY_BYTES).digest() if namespace else root


def block_keys(keys: Sequence[int], page_size: int, after: BlockKey) -> list[BlockKey]:
    """One key per full block of `keys`, which follow the block of key `after`. 0.5 us a block of 16."""
    data = token_array(keys).tobytes()
    stride = 8 * page_size
    blocks: list[BlockKey] = []
    for start in range(0, len(keys) // page_size * stride, stride):
        after = blake2b(after + data[start : start + stride], digest_size=_KEY_BYTES).digest()
        blocks.append(after)
    return blocks


def page_key(block: BlockKey, part: int) -> PageKey:
    return block + part.to_bytes(2, "little")


def part_of(key: PageKey) -> int:
    return int.from_bytes(key[_KEY_BYTES:], "little")
