"""Block tables of requests: which pages are in them, and which leave and enter as windows move on.

A table mixes pages that the radix cache owns and those that the request holds alone; the pool's page states
tell them apart. Of a group with a window, it has only the pages of tokens that a later one sees, and while
the prompt is computed those of the next chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.kv_groups import NO_PAGE
from engine.core.request import Request, RequestId
from engine.kv.cache.page_needs import PageNeeds
from engine.kv.cache.pages import PagePool, PageState
from engine.kv.cache.radix_node import RadixNode
from engine.kv.cache.window_pages import WindowPages


class BlockTableAllocator:
    def __init__(
        self,
        needs: PageNeeds,
        pool: PagePool,
        windows: WindowPages[RadixNode],
        take: Callable[[int, int], list[int]],
    ) -> None:
        """`take`: at most a number of pages for an owner, HELD by it, as many as there are."""
        self._needs = needs
        self._stride, self._page_size = needs.stride, needs.page_size
        self._pool = pool
        self._windows = windows
        self._take = take
        self._passed: dict[RequestId, int] = {}
        """Tokens after which pages of windows were given back, by request."""

    def extend(self, request: Request, blocks: int, places: Sequence[int], fresh: list[int]) -> None:
        """Make the table of a request as long as `blocks`, with `fresh` pages at `places`."""
        first = len(request.pages) // self._stride
        self._passed[request.id] = first * self._page_size
        missing = blocks * self._stride - len(request.pages)
        if len(fresh) == missing:
            request.pages = request.pages + fresh
            request.capacity = blocks * self._page_size
            return
        request.pages = request.pages + [NO_PAGE] * missing
        for place, page in zip(places, fresh, strict=True):
            request.pages[place] = page
        # Blocks of arriving KV that lack pages are behind windows, and have been computed.
        last_lacks = NO_PAGE in request.pages[-self._stride :]
        request.capacity = (
            self._needs.backed(request.pages, first) if last_lacks else blocks * self._page_size
        )

    def fill(self, request: Request) -> None:
        """Take the pages ahead that windows have come to reach, as many as there are."""
        first = request.capacity // self._page_size
        places = self._needs.places_ahead(request.pages, first, self._passed[request.id])
        for place, page in zip(places, self._take(len(places), request.id), strict=False):
            request.pages[place] = page
        request.capacity = self._needs.backed(request.pages, first)

    def found(self, pages: list[int], base: int, position: int) -> list[int]:
        """Matched `pages` of blocks from `base` on, without those of windows that are behind `position`."""
        if not self._needs.windowed:
            return pages
        pages = self._needs.without_passed(pages, base, position)
        self._windows.found(self._windows.of(pages))
        return pages

    def pass_by(self, request: Request, upto: int) -> None:
        """Give back pages that no token from `upto` - 1 on sees, and take as many for the prompt ahead.

        No step in flight may need them, nor a sender. (A receiver may compute the token before `upto` again.)
        """
        if not self._needs.windowed:
            return
        pages, stride = request.pages, self._stride
        cached: list[int] = []
        held: list[int] = []
        for windowed in self._needs.windowed:
            place = (self._needs.first_block(windowed.group, upto) - 1) * stride + windowed.number
            while place >= 0 and (page := pages[place]) != NO_PAGE:
                (cached if self._pool.state(page) is PageState.CACHED else held).append(page)
                pages[place] = NO_PAGE
                place -= stride
        self._passed[request.id] = upto
        self._pool.give_back(held, request.id)
        self._windows.unread(reversed(cached), passed=True)
        if request.capacity < len(pages) // stride * self._page_size:
            self.fill(request)

    def clear(self, request: Request) -> None:
        """Forget all pages of a request, which have been given back."""
        request.pages = []
        request.capacity = 0
        self._passed.pop(request.id, None)

    def held_by(self, request: Request) -> list[int]:
        """Pages that the request has to itself."""
        held, state = PageState.HELD, self._pool.state
        return [page for page in request.pages if page != NO_PAGE and state(page) is held]
