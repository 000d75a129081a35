"""sum64: a page digest that any device can compute, and that the shards of a page can compute in parts.

A page's valid bytes are read as little-endian words, and

    digest = sum over words of weight(position) * mix(word)  mod 2**64

* `mix` is injective and `weight` is odd, hence invertible: any change of a single word, such as one flipped
  bit, always changes the digest.
* A position is (layer, keys or values, head of the whole model, token, word of the token). Its weight is a
  hash, so swapped tokens, heads or layers go undetected with a probability of about 2**-63, like any other
  change of two or more words.
* A sum is independent of grouping: the digests of shards without common heads add up to that of the whole
  page, for any number of shards.
* `mix(0)` is not 0: zero pages with different valid lengths have different digests.

A recurrent state has a digest for each of its heads, over the head's bytes of all rows, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kv_transfer.integrity.host_states import HostStates
from kv_transfer.layout import KVLayout
from kv_transfer.memory import PoolMemory
from kv_transfer.state_layout import StateLayout

Array: TypeAlias = npt.NDArray[Any]

MASK: Final = 2**64 - 1
MIX_OFFSET: Final = 0xD1B54A32D192ED03
MIX_FACTOR: Final = 0x9E3779B97F4A7C15
"""mix(word): y = (word + MIX_OFFSET) * MIX_FACTOR; y ^ y >> 32. The shift moves the word's high bits, which
hold the signs of numbers, to where a product keeps them."""
SPREAD: Final = 0x9E3779B97F4A7C15
STIR_1: Final = 0xBF58476D1CE4E5B9
STIR_2: Final = 0x94D049BB133111EB
"""weight(position): SplitMix64's output number `position`, made odd."""

_BLOCK_WORDS: Final = 1 << 14
"""Words per block on the host: three arrays of 8 bytes per word, which fit a second-level cache."""


@dataclass(frozen=True, slots=True)
class Words:
    """How a layout's pages are cut into words."""

    word_bytes: int
    """The largest of 4, 2 and 1 that divides a token's bytes."""
    words_per_token: int
    """For one head, keys or values."""
    tokens: int
    """Per page."""
    kinds: int
    """(layer, keys or values) pairs."""
    heads: int
    """Heads of this shard, from `first_head` on, of the model's `all_heads`."""
    first_head: int
    all_heads: int

    @classmethod
    def of(cls, layout: KVLayout, group: int = 0) -> Words:
        """`group`: whose tokens are told apart, where groups have heads of different sizes. Then a position
        is the place of a word in its shard's page, whatever the group."""
        every = [layout.token_bytes_of(index) for index in range(len(layout.groups))]
        word_bytes = next(size for size in (4, 2, 1) if not any(token % size for token in every))
        if layout.has_other_heads:
            rows = layout.page_bytes // layout.page_size // every[group]
            return cls(
                word_bytes=word_bytes,
                words_per_token=every[group] // word_bytes,
                tokens=layout.page_size,
                kinds=1,
                heads=rows,
                first_head=layout.first_head * rows,
                all_heads=layout.num_kv_heads * rows,
            )
        return cls(
            word_bytes=word_bytes,
            words_per_token=layout.token_bytes // word_bytes,
            tokens=layout.page_size,
            kinds=2 * layout.page_layers,
            heads=layout.heads_per_shard,
            first_head=layout.first_head,
            all_heads=layout.num_kv_heads,
        )

    @classmethod
    def of_state(cls, state: StateLayout) -> Words:
        """Words of one head of a state, as a page of one row."""
        words = state.head_bytes // state.word_bytes
        return cls(state.word_bytes, words, tokens=1, kinds=1, heads=1, first_head=0, all_heads=1)

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
    """Weights of the words of a page: `[row, word of the row]`, uint64."""
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
        self._words = [Words.of(layout, group) for group in range(len(layout.groups))]
        flat = np.frombuffer(memory.host_bytes(), dtype=np.uint8)
        self._pages = flat.view(f"<u{self._words[0].word_bytes}").reshape(memory.num_pages, -1)
        self._weights = weights(self._words[0])  # the same for all groups
        self._states = HostStates(flat, layout)
        self._state = None if layout.state is None else Words.of_state(layout.state)

    def digest(self, pages: Sequence[int], tail_tokens: int, group: int = 0) -> list[int]:
        if not pages:
            return []
        words = self._words[group]
        tails = [words.tokens] * (len(pages) - 1) + [tail_tokens]
        return [self._sum(self._pages[page], tail, words) for page, tail in zip(pages, tails, strict=True)]

    def digest_state(self, first: int) -> list[int]:
        assert self._state is not None
        heads = self._states.by_head(first).view(f"<u{self._state.word_bytes}")
        weight = weights(self._state)[0]
        return [_weighed(head, weight) & MASK for head in heads]

    def _sum(self, page: Array, tokens: int, words: Words) -> int:
        page, weight = page.reshape(words.rows, words.row), self._weights.reshape(words.rows, words.row)
        width = tokens * words.words_per_token
        step = max(1, _BLOCK_WORDS // width)
        total = 0
        for begin in range(0, words.rows, step):
            rows = slice(begin, begin + step)
            total += _weighed(page[rows, :width], weight[rows, :width])
        return total & MASK


def _weighed(words: Array, weights: Array) -> int:
    mixed = np.add(words, np.uint64(MIX_OFFSET), dtype=np.uint64)
    mixed *= np.uint64(MIX_FACTOR)
    mixed ^= mixed >> np.uint64(32)
    mixed *= weights
    return int(mixed.sum())
