"""Which pages a request needs, by its length: arithmetic of block tables, without pools or requests.

A block table is flat: page g of block i is at place i * (number of groups) + g.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.kv_groups import NO_PAGE, KVGroup, RequestPages, kept_places


@dataclass(frozen=True, slots=True)
class Windowed:
    """A group with a window."""

    number: int
    group: KVGroup
    kept: int
    """Most blocks whose pages a decoding request has."""
    most: int
    """The same while its prompt is computed, with the chunk in flight and the next one."""


class PageNeeds:
    def __init__(self, page_size: int, groups: Sequence[KVGroup], largest_chunk: int | None) -> None:
        """`largest_chunk`: of a prompt; None: prompts may be computed whole."""
        self.page_size = page_size
        self.groups = tuple(groups)
        self.stride = len(groups)
        self.of_request = RequestPages.of_groups(page_size, groups, largest_chunk)
        self.windowed = [
            Windowed(number, group, -(-group.window // page_size) + 1, self.of_request.most_blocks[number])
            for number, group in enumerate(groups)
            if group.window is not None
        ]
        self.num_full = self.stride - len(self.windowed)

    def blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def pages(self, blocks: int) -> int:
        """Most pages that a request holds while its prompt of this many blocks is computed here."""
        return self.of_request.of_blocks(blocks)

    def growth(self, num_tokens: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Pages that requests of `num_tokens` take while they decode `tokens` more."""
        blocks = -(-tokens // self.page_size)
        pages: NDArray[np.int64] = blocks * self.num_full
        for windowed in self.windowed:
            pages += np.minimum(blocks, np.maximum(windowed.kept - num_tokens // self.page_size, 0))
        return pages

    def first_block(self, group: KVGroup, position: int) -> int:
        """The first block with a token that the one before `position` sees."""
        return group.first_needed(position - 1) // self.page_size

    def places(self, blocks: range) -> Sequence[int]:
        """Places for the pages to take for `blocks` of a prompt: those that windows reach from the first."""
        if not self.windowed:
            return range(blocks.start * self.stride, blocks.stop * self.stride)
        ends = [blocks.stop] * self.stride
        for windowed in self.windowed:
            ends[windowed.number] = min(blocks.stop, blocks.start + windowed.most)
        return [b * self.stride + g for b in blocks for g in range(self.stride) if b < ends[g]]

    def places_of_arriving(self, blocks: range, position: int) -> Sequence[int]:
        """Places for the pages of `blocks` whose KV arrives, up to `position` or beyond."""
        return kept_places(self.groups, self.page_size, position, blocks)

    def places_ahead(self, table: Sequence[int], first: int, passed: int) -> list[int]:
        """Places without a page, from block `first` on, that windows reach when `passed` tokens are computed.

        Block by block, and groups in order of their number.
        """
        blocks = len(table) // self.stride
        ends = {w.number: min(blocks, self.first_block(w.group, passed) + w.most) for w in self.windowed}
        places = (
            block * self.stride + number
            for block in range(first, max(ends.values()))
            for number, end in ends.items()
            if block < end
        )
        return [place for place in places if table[place] == NO_PAGE]

    def backed(self, table: Sequence[int], first: int) -> int:
        """Tokens up to which every block from `first` on has all of its pages."""
        blocks = len(table) // self.stride
        if not self.windowed:
            return blocks * self.page_size
        lacking = (b for b in range(first, blocks) if any(self._lacks(table, b)))
        return next(lacking, blocks) * self.page_size

    def _lacks(self, table: Sequence[int], block: int) -> Iterator[bool]:
        return (table[block * self.stride + windowed.number] == NO_PAGE for windowed in self.windowed)

    def without_passed(self, pages: list[int], base: int, position: int) -> list[int]:
        """`pages` of blocks from `base` on, without those that no token from `position` on sees."""
        pages = pages.copy()
        for windowed in self.windowed:
            passed = (self.first_block(windowed.group, position) - base) * self.stride
            for place in range(windowed.number, min(passed, len(pages)), self.stride):
                pages[place] = NO_PAGE
        return pages
