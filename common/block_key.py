"""Keys that name the whole pages of a token sequence for good: the content address of their KV.

Unlike `block_hash`, whose collisions only cost time, a key decides which KV a request reads. It is therefore
a cryptographic hash (BLAKE2b, 256 bits), of the page's tokens and of the key before it; the first key follows
one that stands for the model's weights and the layout of its pages.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

__all__ = ["KEY_BYTES", "BlockKey", "block_keys", "root_key"]

BlockKey: TypeAlias = bytes

KEY_BYTES: Final = 32


def root_key(identity: str) -> BlockKey:
    """The key before a sequence's first page. `identity`: of the weights and of the layout of pages."""
    return blake2b(identity.encode(), digest_size=KEY_BYTES).digest()


def block_keys(tokens: Sequence[int], page_size: int, after: BlockKey) -> list[BlockKey]:
    """One key per full page of `tokens`, which follow the page of key `after`. 0.7 us a page."""
    data = array("I", tokens).tobytes()
    stride = 4 * page_size
    keys: list[BlockKey] = []
    for start in range(0, len(tokens) // page_size * stride, stride):
        after = blake2b(after + data[start : start + stride], digest_size=KEY_BYTES).digest()
        keys.append(after)
    return keys
