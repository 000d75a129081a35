"""The pages of a request that own sidecars."""

from __future__ import annotations

from engine.core.request import Request
from engine.kv.cache.page_needs import PageNeeds
from engine.kv.cache.pages import PagePool, PageState


class OwnPages:
    def __init__(self, needs: PageNeeds, pool: PagePool) -> None:
        self.page_size = needs.page_size
        self._stride = needs.stride
        self._pool = pool
        full = (number for number, group in enumerate(needs.groups) if group.window is None)
        self.group = next(full, None)
        """The group whose pages own the rows. None: windows drop every page, and its rows with it."""

    def of_group(self, pages: list[int]) -> list[int]:
        """Pages of a block table that own rows, one for each block."""
        return pages[self.group :: self._stride]

    def own(self, request: Request, block: int) -> int | None:
        """The page that a request writes itself for a block; None: it is shared, or not there."""
        if self.group is None or (place := block * self._stride + self.group) >= len(request.pages):
            return None
        page = request.pages[place]
        is_own = page >= 0 and self._pool.state(page) is PageState.HELD
        return page if is_own else None
