"""Splits the contexts of a batch of decodes into parts, one for each thread block and key head. Numpy alone.

A decode reads its whole context for one token, so it is bound by memory bandwidth if all multiprocessors are
busy until the end. Starting and merging parts costs time. So contexts stay whole in a large batch, unless
one of them is so long that all others would wait for it. (Splitting contexts: Flash-Decoding, Dao et al.
2023; longest parts first: Graham, 1969.)
"""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.batch.block_tables import starts_of
from engine.batch.decode_plan import DecodePlan, Decodes
from engine.batch.step_inputs import Ints

__all__ = ["DecodePlanner"]

_SMALLEST_TOKENS: Final = 128
"""A part shorter than this costs more to begin and to merge than it saves."""
_BLOCKS_PER_MULTIPROCESSOR: Final = 4
"""At once: see decode_attention.py."""
_MANY: Final = 2
"""Waves of parts that contexts are cut into if there are more of them than fit at once: measured."""
_EXTRA_WAVES: Final = 2
"""Contexts that are uneven are cut into so many parts, more than there are, as fill the GPU so many times."""
_ALONE: Final = 2.5
"""How much faster a thread block reads when it has the memory to itself."""


class DecodePlanner:
    """For one GPU and one number of key heads: each part is read by so many thread blocks."""

    def __init__(self, *, multiprocessors: int, num_kv_heads: int, page_size: int) -> None:
        self._page_size = page_size
        self._at_once = max(1, _BLOCKS_PER_MULTIPROCESSOR * multiprocessors // num_kv_heads)
        self._smallest = max(1, _SMALLEST_TOKENS // page_size)

    def most_parts(self, num_requests: int) -> int:
        """As many as any plan for so many requests has."""
        return num_requests + _EXTRA_WAVES * self._room(num_requests)

    def keeps_whole(self, pages: Ints) -> bool:
        """Whether contexts of so many pages are best read whole."""
        return len(pages) >= self._room(len(pages)) and not self._is_uneven(int(pages.max()), pages)

    def plan(self, decodes: Decodes) -> DecodePlan[Ints]:
        """Every request has at least one page."""
        tables = decodes.block_tables
        part_pages = self._part_pages(tables.counts)
        first_parts, owners, indices = _split(tables.counts, part_pages)
        return DecodePlan(
            page_indptr=tables.indptr,
            last_page_lens=decodes.context_lens - (tables.counts - 1) * self._page_size,
            first_parts=first_parts,
            owners=owners,
            indices=indices,
            part_tokens=np.array([part_pages * self._page_size]),
            pages=tables.pages,
        )

    def _room(self, num_requests: int) -> int:
        """How many parts to cut contexts into, if they are even."""
        return self._at_once if num_requests <= self._at_once else _MANY * self._at_once

    def _part_pages(self, pages: Ints) -> int:
        longest, total = int(pages.max()), int(pages.sum())
        if self.keeps_whole(pages):
            return longest
        if len(pages) < self._room(len(pages)):
            part = self._smallest_that_fits(pages, longest)
            if not self._is_uneven(part, pages):
                return part
        # sum(ceil(p / part)) < sum(p / part) + R
        return max(-(-total // (_EXTRA_WAVES * self._room(len(pages)))), self._smallest)

    def _smallest_that_fits(self, pages: Ints, longest: int) -> int:
        """So that there is room for all parts."""
        low, high, room = min(self._smallest, longest), longest, self._room(len(pages))
        while low < high:
            middle = (low + high) // 2
            if int((-(-pages // middle)).sum()) > room:
                low = middle + 1
            else:
                high = middle
        return low

    def _is_uneven(self, longest_part: int, pages: Ints) -> bool:
        """Whether the longest part would still be read when all others are."""
        return longest_part * self._room(len(pages)) > _ALONE * int(pages.sum())


def _split(pages: Ints, part_pages: int) -> tuple[Ints, Ints, Ints]:
    """`first_parts`, `owners` and `indices` of a plan whose parts have `part_pages`, the longest first."""
    counts = -(-pages // part_pages)
    first_parts = starts_of(counts)
    owners = np.repeat(np.arange(len(pages)), counts)
    indices = np.arange(len(owners)) - first_parts[owners]
    lengths = np.minimum(pages[owners] - indices * part_pages, part_pages)
    order = np.argsort(-lengths, kind="stable")
    return first_parts, owners[order], indices[order]
