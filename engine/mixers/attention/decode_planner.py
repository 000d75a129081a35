"""Splits the contexts of a batch of decodes into parts, one per thread block and key head. Needs only numpy.

A decode reads its whole context for one token, so it is bound by memory bandwidth as long as all
multiprocessors are busy. Starting and merging parts costs time, so contexts stay whole in a large batch
unless one is so long that it would run alone at the end. (Splitting contexts: Flash-Decoding, Dao et al.
2023; longest parts first: Graham, 1969.)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from engine.core.batch.block_tables import starts_of
from engine.core.batch.decode_plan import DecodePlan, Decodes
from engine.core.batch.step_inputs import Ints

_SMALLEST_TOKENS: Final = 128
"""Below this, starting and merging a part costs more than it saves."""
_BLOCKS_PER_MULTIPROCESSOR: Final = 4
"""Resident at once: see decode_attention.py."""
_MANY: Final = 2
"""If more contexts than fit at once are to be split, the number of waves of parts; measured."""
_EXTRA_WAVES: Final = 2
"""Contexts of uneven length are split into as many additional parts as fill the GPU this many times."""
_FEW: Final = 32
"""Contexts of which a loop in Python takes less time than one in numpy."""
_ALONE: Final = 2.5
"""How much faster a thread block reads when no other one is running."""
_KEPT: Final = 8
"""Splits of the last batches: contexts reach a new page in one step of many."""


class _Parts(NamedTuple):
    """Fields of `DecodePlan`."""

    first_parts: Ints
    owners: Ints
    indices: Ints
    part_tokens: Ints


class DecodePlanner:
    """For one GPU and one number of key heads, which is the number of thread blocks per part."""

    def __init__(self, *, multiprocessors: int, num_kv_heads: int, page_size: int) -> None:
        self._page_size = page_size
        self._at_once = max(1, _BLOCKS_PER_MULTIPROCESSOR * multiprocessors // num_kv_heads)
        self._smallest = max(1, _SMALLEST_TOKENS // page_size)
        self._parts = lru_cache(_KEPT)(self._split)

    def most_parts(self, num_requests: int) -> int:
        """Upper bound of the number of parts in a plan for this many requests."""
        return num_requests + _EXTRA_WAVES * self._room(num_requests)

    def keeps_whole(self, pages: Ints) -> bool:
        """Whether contexts of these lengths, in pages, are read fastest without splitting."""
        room = self._room(len(pages))
        return len(pages) >= room and not self._is_uneven(int(pages.max()), int(pages.sum()), room)

    def plan(self, decodes: Decodes) -> DecodePlan[Ints]:
        """Every request has at least one page."""
        tables = decodes.block_tables
        counts = tables.counts
        parts = self._parts(counts.tobytes())
        return DecodePlan(
            page_indptr=tables.indptr,
            last_page_lens=decodes.context_lens - (counts - 1) * self._page_size,
            first_parts=parts.first_parts,
            owners=parts.owners,
            indices=parts.indices,
            part_tokens=parts.part_tokens,
            pages=tables.pages,
        )

    def _split(self, counts: bytes) -> _Parts:
        """Parts of contexts with these `BlockTables.counts`, the longest first."""
        pages = np.frombuffer(counts, dtype=np.int64)
        part_pages = self._part_pages(pages)
        numbers = -(-pages // part_pages)
        first_parts = starts_of(numbers)
        owners = np.repeat(np.arange(len(pages)), numbers)
        indices = np.arange(len(owners)) - first_parts[owners]
        lengths = np.minimum(pages[owners] - indices * part_pages, part_pages)
        order = np.argsort(-lengths, kind="stable")
        tokens = np.array([part_pages * self._page_size])
        return _Parts(first_parts, owners[order], indices[order], tokens)

    def _room(self, num_requests: int) -> int:
        """How many parts to split contexts of even length into."""
        return self._at_once if num_requests <= self._at_once else _MANY * self._at_once

    def _part_pages(self, pages: Ints) -> int:
        longest, total, room = int(pages.max()), int(pages.sum()), self._room(len(pages))
        if len(pages) < room:
            part = self._smallest_that_fits(pages, longest, room)
            if not self._is_uneven(part, total, room):
                return part
        elif self.keeps_whole(pages):
            return longest
        # sum(ceil(p / part)) < sum(p / part) + R
        return max(-(-total // (_EXTRA_WAVES * room)), self._smallest)

    def _smallest_that_fits(self, pages: Ints, longest: int, room: int) -> int:
        """The smallest part size, in pages, with which all parts fit."""
        low, high = min(self._smallest, longest), longest
        few = pages.tolist() if len(pages) <= _FEW else None
        while low < high:
            middle = (low + high) // 2
            parts = int((-(-pages // middle)).sum()) if few is None else sum([-(-p // middle) for p in few])
            if parts > room:
                low = middle + 1
            else:
                high = middle
        return low

    @staticmethod
    def _is_uneven(longest_part: int, total: int, room: int) -> bool:
        """Whether the longest part would still run when all others are done."""
        return longest_part * room > _ALONE * total
