"""Where free pages come from: the pool, and if that has too few, the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.kv.cache.pages import PagePool, PageState
from engine.kv.cache.radix import RadixCache
from engine.kv.cache.sidecars import Sidecars
from engine.kv.manager.page_tiers import PageTiers


class PageSupply:
    def __init__(
        self, pool: PagePool, cache: RadixCache, sidecars: Sidecars, unlock_arrived: Callable[[], bool]
    ) -> None:
        """`unlock_arrived`: unlock what has arrived for waiting requests; False: there is none."""
        self.tiers: PageTiers | None = None
        self._pool = pool
        self._cache = cache
        self._sidecars = sidecars
        self._unlock_arrived = unlock_arrived

    @property
    def num_available(self) -> int:
        """Pages that are free, or would be at once if they were evicted."""
        copying = self.tiers.tiers.num_copying if self.tiers else 0
        return self._pool.num_free + max(0, self._cache.num_evictable - copying)

    def take(self, count: int, owner: int, state: PageState) -> list[int] | None:
        """Pages for `owner`, without sidecars; None if there are too few."""
        if count > self.num_available:
            self._unlock_arrived()
        if count > self.num_available:
            return None
        while (short := count - self._pool.num_free) > 0:
            self.evicted(self._cache.evict(short))
        pages = self._pool.take(count, owner, state)
        self._sidecars.clear(pages)
        return pages

    def take_most(self, count: int, owner: int) -> list[int]:
        return self.take(min(count, self.num_available), owner, PageState.HELD) or []

    def evicted(self, pages: Sequence[int]) -> None:
        """The cache has given up these pages."""
        if self.tiers is None:
            self._pool.from_cache(pages)
        else:
            self.tiers.evicted(pages)
