"""sum64: a page digest that any device can compute, and that the shards of a page can compute in parts.

A page's valid bytes are read as little-endian words, and

    digest = sum over words of weight(position) * mix(word)  mod 2**64

* `mix` maps different words to different numbers, and `weight` is odd, that is invertible: whatever happens
  to one word, one flipped bit above all, changes the digest for certain.
* A position is (layer, keys or values, head of the whole model, token, word of the token). Its weight is a
  hash, so exchanged tokens, heads or layers pass with a probability of about 2**-63, as any other change of
  two words or more does.
* The sum does not ask who added what: digests of shards that share no head add up to that of the whole page,
  however many shards there are.
* `mix(0)` is not 0: pages of zeros that are valid to different lengths differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kv_transfer.layout import KVLayout
from kv_transfer.memory import PoolMemory

__all__ = ["MASK", "MIX_FACTOR", "MIX_OFFSET", "SPREAD", "STIR_1", "STIR_2", "HostSum64", "Words", "weights"]

Array: TypeAlias = npt.NDArray[Any]

MASK: Final = 2**64 - 1
MIX_OFFSET: Final = 0xD1B54A32D192ED03
MIX_FACTOR: Final = 0x9E3779B97F4A7C15
"""mix(word): y = (word + MIX_OFFSET) * MIX_FACTOR; y ^ y >> 32. The shift brings the word's high bits, where
the signs of numbers are, down to where a product keeps them."""
SPREAD: Final = 0x9E3779B97F4A7C15
STIR_1: Final = 0xBF58476D1CE4E5B9
STIR_2: Final = 0x94D049BB133111EB
"""weight(position): SplitMix64's output number `position`, made odd."""

_BLOCK_WORDS: Final = 1 << 14
"""What the host works on at a time: three arrays of 8 bytes a word, which second-level caches hold."""


@dataclass(frozen=True, slots=True)
class Words:
    """How a layout's pages are cut into words."""

    word_bytes: int
    """4; or 2 or 1 where that is all that divides a token's bytes."""
    words_per_token: int
    """Of one head, keys or values."""
    tokens: int
    """Of a page."""
    kinds: int
    """(layer, keys or values) pairs."""
    heads: int
    """In this shard, of which the first is `first_head` of the model's `all_heads`."""
    first_head: int
    all_heads: int

    @classmethod
    def of(cls, layout: KVLayout) -> Words:
        word_bytes = next(size for size in (4, 2, 1) if layout.token_bytes % size == 0)
        return cls(
            word_bytes=word_bytes,
            words_per_token=layout.token_bytes // word_bytes,
            tokens=layout.page_size,
            kinds=2 * layout.num_layers,
            heads=layout.heads_per_shard,
            first_head=layout.first_head,
            all_heads=layout.num_kv_heads,
        )

    @property
    def row(self) -> int:
        """Words of one head of one kind: all tokens."""
        return self.tokens * self.words_per_token

    @property
    def rows(self) -> int:
        return self.kinds * self.heads

    @property
    def page(self) -> int:
        return self.rows * self.row


def weights(words: Words) -> Array:
    """Of each word of a page: `[row, word of the row]`, uint64."""
    kind, head = np.divmod(np.arange(words.rows, dtype=np.uint64), np.uint64(words.heads))
    row = kind * np.uint64(words.all_heads) + np.uint64(words.first_head) + head
    position = row[:, None] * np.uint64(words.row) + np.arange(words.row, dtype=np.uint64)
    z: Array = (position + np.uint64(1)) * np.uint64(SPREAD)
    z = (z ^ z >> np.uint64(30)) * np.uint64(STIR_1)
    z = (z ^ z >> np.uint64(27)) * np.uint64(STIR_2)
    z ^= z >> np.uint64(31)
    z |= np.uint64(1)
    return z


class HostSum64:
    """sum64 over pages in host memory, about a tenth of the speed of xxh3. Releases the GIL.

    Keeps the weights of a page: twice its size, or four times with words of 2 bytes, eight with 1.
    """

    def __init__(self, memory: PoolMemory, layout: KVLayout) -> None:
        memory.require_page_bytes(layout.page_bytes)
        self._words = words = Words.of(layout)
        flat = np.frombuffer(memory.host_bytes(), dtype=np.dtype(f"<u{words.word_bytes}"))
        self._pages = flat.reshape(memory.num_pages, words.rows, words.row)
        self._weights = weights(words)

    def digest(self, pages: Sequence[int], tail_tokens: int) -> list[int]:
        if not pages:
            return []
        tails = [self._words.tokens] * (len(pages) - 1) + [tail_tokens]
        return [self._sum(self._pages[page], tail) for page, tail in zip(pages, tails, strict=True)]

    def _sum(self, page: Array, tokens: int) -> int:
        width = tokens * self._words.words_per_token
        step = max(1, _BLOCK_WORDS // width)
        total = 0
        for begin in range(0, self._words.rows, step):
            rows = slice(begin, begin + step)
            total += _weighed(page[rows, :width], self._weights[rows, :width])
        return total & MASK


def _weighed(words: Array, weights: Array) -> int:
    mixed = np.add(words, np.uint64(MIX_OFFSET), dtype=np.uint64)
    mixed *= np.uint64(MIX_FACTOR)
    mixed ^= mixed >> np.uint64(32)
    mixed *= weights
    return int(mixed.sum())
