"""Keys that name the whole blocks of a token sequence for good: the content address of their KV.

Unlike `block_hash`, whose collisions only cost time, a key decides which KV a request reads. It is therefore
a cryptographic hash (BLAKE2b, 256 bits), of the block's tokens and of the key before it; the first key
follows one that stands for the model's weights and the layout of its pages.

The KV of a block has parts of a page each, which a tier keeps and loses one by one: a page for every group of
layers, and after them the pages of the recurrent state after the block, if the model has one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

BlockKey: TypeAlias = bytes
PageKey: TypeAlias = bytes
"""A block's key, and the number of the part."""

_KEY_BYTES: Final = 32
PAGE_KEY_BYTES: Final = _KEY_BYTES + 2


def root_key(identity: str) -> BlockKey:
    """The key before a sequence's first block. `identity`: of the weights and of the layout of pages."""
    return blake2b(identity.encode(), digest_size=_KEY_BYTES).digest()


def block_keys(tokens: Sequence[int], page_size: int, after: BlockKey) -> list[BlockKey]:
    """One key per full block of `tokens`, which follow the block of key `after`. 0.7 us a block."""
    data = array("I", tokens).tobytes()
    stride = 4 * page_size
    keys: list[BlockKey] = []
    for start in range(0, len(tokens) // page_size * stride, stride):
        after = blake2b(after + data[start : start + stride], digest_size=_KEY_BYTES).digest()
        keys.append(after)
    return keys


def page_key(block: BlockKey, part: int) -> PageKey:
    return block + part.to_bytes(2, "little")


def part_of(key: PageKey) -> int:
    return int.from_bytes(key[_KEY_BYTES:], "little")
