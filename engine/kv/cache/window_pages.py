"""Cached pages of groups with windows: who reads them, and which prefixes they let a request continue from.

A full page is needed by every prefix through it, so it leaves the cache with its node. A page of a window is
needed only by a prefix that ends within the window after it, so it may leave alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np

from common.kv_groups import NO_PAGE, KVGroup

N = TypeVar("N")
"""A node of the cache."""


class WindowPages(Generic[N]):
    """Block tables are flat: page g of block i is at index i * (number of groups) + g."""

    def __init__(self, page_size: int, groups: Sequence[KVGroup]) -> None:
        self._page_size = page_size
        self._stride = len(groups)
        self._groups = [number for number, group in enumerate(groups) if group.window is not None]
        self.used = bool(self._groups)
        """Whether a group has a window; if none has, there are no pages here."""
        self._windows = np.array([groups[number].window for number in self._groups], dtype=np.int64)
        self._nodes: dict[int, N] = {}
        """The node of each cached page."""
        self._readers: dict[int, int] = {}
        """Readers of each page that has some."""
        self._passed: dict[int, None] = {}
        """Pages without readers that requests have computed and left behind: only a prompt that diverges
        there needs them. Oldest first, as in `_idle`."""
        self._idle: dict[int, None] = {}
        """Other pages without readers: a request ended just after them, or continued from there."""
        self._found: set[int] = set()
        """Pages that a match has found."""
        self.rested: list[int] | None = None
        """Pages in the order in which they became idle; some may be in use again. None: not recorded."""

    @property
    def num_reads(self) -> int:
        """Pages that requests read, counted for each reader."""
        return sum(self._readers.values())

    @property
    def num_passed(self) -> int:
        return len(self._passed)

    @property
    def num_unread(self) -> int:
        return len(self._passed) + len(self._idle)

    def of(self, pages: Sequence[int]) -> list[int]:
        """The pages of window groups in a block table."""
        return [page for group in self._groups for page in pages[group :: self._stride] if page != NO_PAGE]

    def among(self, pages: Iterable[int]) -> list[int]:
        """Select the cached pages of window groups from `pages`."""
        if not self.used:
            return []
        return [page for page in pages if page in self._nodes]

    def added(self, pages: Iterable[int], node: N) -> None:
        """`pages` of window groups are cached now, without readers."""
        for page in pages:
            self._nodes[page] = node
            self._rest(page)

    def moved(self, pages: Iterable[int], node: N) -> None:
        for page in pages:
            self._nodes[page] = node

    def dropped(self, pages: Iterable[int]) -> None:
        """`pages`, which have no readers, are no longer cached."""
        for page in pages:
            del self._nodes[page]
            del (self._passed if page in self._passed else self._idle)[page]
            self._found.discard(page)

    def found(self, pages: Sequence[int]) -> None:
        """A request continues after a match and needs cached `pages`."""
        self._found.update(pages)
        self.read(pages)

    def read(self, pages: Iterable[int]) -> None:
        """A request needs cached `pages`: they must not be evicted alone."""
        for page in pages:
            readers = self._readers.get(page, 0)
            self._readers[page] = readers + 1
            if not readers:
                del (self._passed if page in self._passed else self._idle)[page]

    def unread(self, pages: Iterable[int], *, passed: bool = False) -> None:
        """A request no longer needs cached `pages`. `passed`: it goes on behind them."""
        for page in pages:
            readers = self._readers[page] - 1
            if readers:
                self._readers[page] = readers
                continue
            del self._readers[page]
            if passed and page not in self._found:
                self._passed[page] = None
            else:
                self._rest(page)

    def take_rested(self) -> list[int]:
        """Idle pages that were not when this was called last."""
        assert self.rested is not None
        rested, self.rested = self.rested, []
        return [page for page in dict.fromkeys(rested) if page in self._idle]

    def _rest(self, page: int) -> None:
        self._idle[page] = None
        if self.rested is not None:
            self.rested.append(page)

    def pop(self, *, passed: bool) -> tuple[int, N] | None:
        """Remove the page that has been without readers for longest, and its node; None: there is none."""
        pages = self._passed if passed else self._idle
        page = next(iter(pages), None)
        if page is None:
            return None
        del pages[page]
        self._found.discard(page)
        return page, self._nodes.pop(page)

    def usable(self, pages: Sequence[int], base: int, resume: int) -> int:
        """How many leading blocks of a match a request can continue from.

        `pages` follow block `base`, before which every needed page is there. Tokens up to `resume` arrive by
        other means, so what only they need may be missing.
        """
        if not self.used:
            return len(pages) // self._stride
        table = np.array(pages, dtype=np.int64).reshape(-1, self._stride)[:, self._groups]
        blocks = np.arange(len(table))
        last_hole = np.maximum.accumulate(np.where(table == NO_PAGE, blocks[:, None], -1), axis=0)
        continues = np.maximum((base + blocks + 1) * self._page_size, resume)
        needed = (continues[:, None] + 1 - self._windows) // self._page_size - base
        good = np.flatnonzero((last_hole < np.maximum(needed, 0)).all(axis=1))
        return int(good[-1]) + 1 if len(good) else 0
