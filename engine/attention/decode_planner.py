"""Which thread block reads which part of whose context: how a batch of decodes shares a GPU. Numpy alone.

A decode reads its whole context for one token, so its time is the memory's if all multiprocessors are busy
to the end. What is cut has to be merged, and a part has to begin. So contexts stay whole in a large batch,
unless one of them is so long that all others would wait for it. (The cut is that of Flash-Decoding, Dao et
al. 2023; that the longest parts go first, and short ones fill the gaps, is Graham's, 1969.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.batch.block_tables import starts_of
from engine.batch.step_inputs import Ints

__all__ = ["DecodePlan", "DecodePlanner"]

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


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """P parts of R contexts, in the order in which to begin them."""

    part_pages: int
    """Pages of each part but a request's last."""
    owners: Ints
    """[P]: whose context."""
    indices: Ints
    """[P]: which part of it."""
    first_parts: Ints
    """[R + 1]: where a request's parts begin if all were in the order of requests."""


class DecodePlanner:
    """For one GPU and one number of key heads: each part is read by so many thread blocks."""

    def __init__(self, *, multiprocessors: int, num_kv_heads: int, page_size: int) -> None:
        self._at_once = max(1, _BLOCKS_PER_MULTIPROCESSOR * multiprocessors // num_kv_heads)
        self._smallest = max(1, _SMALLEST_TOKENS // page_size)

    def most_parts(self, num_requests: int) -> int:
        """As many as any plan for so many requests has."""
        return num_requests + _EXTRA_WAVES * self._room(num_requests)

    def keeps_whole(self, pages: Ints) -> bool:
        """Whether contexts of so many pages are best read whole."""
        return len(pages) >= self._room(len(pages)) and not self._is_uneven(int(pages.max()), pages)

    def plan(self, pages: Ints) -> DecodePlan:
        """For contexts of so many pages, [R] and at least one each."""
        return _cut(pages, self._part_pages(pages))

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


def _cut(pages: Ints, part_pages: int) -> DecodePlan:
    counts = -(-pages // part_pages)
    first_parts = starts_of(counts)
    owners = np.repeat(np.arange(len(pages)), counts)
    indices = np.arange(len(owners)) - first_parts[owners]
    lengths = np.minimum(pages[owners] - indices * part_pages, part_pages)
    order = np.argsort(-lengths, kind="stable")
    return DecodePlan(part_pages, owners[order], indices[order], first_parts)
