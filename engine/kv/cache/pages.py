"""Ownership of the pages of the KV pool.

A page is in exactly one state, and only the transitions in `_LEGAL` exist; all others raise. Therefore adding
six numbers checks at any time that no page is lost or used twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from engine.errors import EngineError

NOBODY: Final = -1


class PageState(IntEnum):
    FREE = 0
    HELD = 1
    """Owned by one request."""
    CACHED = 2
    """Owned by the radix cache; any number of requests may read it."""
    IN_FLIGHT = 3
    """Owned by a handoff: a remote peer may write it."""
    QUARANTINED = 4
    """The handoff was aborted, but the peer's writes may still land."""
    LEAVING = 5
    """Evicted from the radix cache, but still being copied to a tier."""


_LEGAL: Final = frozenset(
    {
        (PageState.FREE, PageState.HELD),
        (PageState.FREE, PageState.IN_FLIGHT),
        (PageState.HELD, PageState.FREE),
        (PageState.HELD, PageState.CACHED),
        (PageState.CACHED, PageState.FREE),
        (PageState.CACHED, PageState.LEAVING),
        (PageState.LEAVING, PageState.FREE),
        (PageState.IN_FLIGHT, PageState.HELD),
        (PageState.IN_FLIGHT, PageState.QUARANTINED),
        (PageState.IN_FLIGHT, PageState.FREE),
        (PageState.QUARANTINED, PageState.HELD),
        (PageState.QUARANTINED, PageState.FREE),
    }
)


class PageError(EngineError):
    """A page was moved by an owner other than its own."""


class OutOfPages(EngineError):
    """Fewer pages are free than requested."""


@dataclass(frozen=True, slots=True)
class PageCounts:
    free: int
    held: int
    cached: int
    in_flight: int
    quarantined: int
    leaving: int
    total: int


class PagePool:
    """States and owners of `num_pages` pages, numbered from 0. Every call costs O(pages named)."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        # Taken from the end, so a new pool hands out ascending runs, which transfers merge into one copy.
        self._free = list(range(num_pages - 1, -1, -1))
        self._state = [PageState.FREE] * num_pages
        self._owner = [NOBODY] * num_pages
        self._counts = [num_pages, *[0] * (len(PageState) - 1)]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def state(self, page: int) -> PageState:
        return self._state[page]

    def owner(self, page: int) -> int:
        """The request or handoff that owns the page; NOBODY for free and cached pages."""
        return self._owner[page]

    def take(self, count: int, owner: int, state: PageState = PageState.HELD) -> list[int]:
        """`count` free pages for `owner`; raises OutOfPages, and takes none, if there are fewer."""
        if count > len(self._free):
            raise OutOfPages(f"{count} pages wanted, {len(self._free)} of {self.num_pages} are free")
        if count == 0:
            return []
        pages = self._free[: -count - 1 : -1]
        self._move(pages, NOBODY, PageState.FREE, owner, state)
        del self._free[-count:]
        return pages

    def give_back(self, pages: Sequence[int], owner: int, state: PageState = PageState.HELD) -> None:
        self._move(pages, owner, state, NOBODY, PageState.FREE)
        self._free.extend(reversed(pages))

    def to_cache(self, pages: Sequence[int], owner: int) -> None:
        self._move(pages, owner, PageState.HELD, NOBODY, PageState.CACHED)

    def from_cache(self, pages: Sequence[int]) -> None:
        """Free evicted pages, which no request reads any more."""
        self._move(pages, NOBODY, PageState.CACHED, NOBODY, PageState.FREE)
        self._free.extend(reversed(pages))

    def leave(self, pages: Sequence[int]) -> None:
        """Evicted pages that a copy to a tier still reads."""
        self._move(pages, NOBODY, PageState.CACHED, NOBODY, PageState.LEAVING)

    def left(self, pages: Sequence[int]) -> None:
        """The copies of these LEAVING pages have ended."""
        self.give_back(pages, NOBODY, PageState.LEAVING)

    def arrived(
        self, pages: Sequence[int], handoff: int, request: int, state: PageState = PageState.IN_FLIGHT
    ) -> None:
        """The KV of these pages of a handoff is verified and final: they now belong to the request."""
        self._move(pages, handoff, state, request, PageState.HELD)

    def quarantine(self, pages: Sequence[int], handoff: int) -> None:
        self._move(pages, handoff, PageState.IN_FLIGHT, handoff, PageState.QUARANTINED)

    def counts(self) -> PageCounts:
        return _page_counts(self._counts)

    def recount(self) -> PageCounts:
        """The counts recomputed from all pages, for the integrity check. O(num_pages)."""
        counts = [0] * len(PageState)
        for state in self._state:
            counts[state] += 1
        return _page_counts(counts)

    def _move(
        self, pages: Sequence[int], owner: int, before: PageState, new_owner: int, after: PageState
    ) -> None:
        if (before, after) not in _LEGAL:
            raise PageError(f"no page may go from {before.name} to {after.name}")
        states, owners = self._state, self._owner
        for page in pages:
            if states[page] is not before or owners[page] != owner:
                raise PageError(
                    f"page {page} is {states[page].name} of {owners[page]}, not {before.name} of {owner}"
                )
            # Changed immediately, so that a page named twice in one call is detected too.
            states[page] = after
            owners[page] = new_owner
        self._counts[before] -= len(pages)
        self._counts[after] += len(pages)


def _page_counts(by_state: Sequence[int]) -> PageCounts:
    free, held, cached, in_flight, quarantined, leaving = by_state
    return PageCounts(free, held, cached, in_flight, quarantined, leaving, total=sum(by_state))
