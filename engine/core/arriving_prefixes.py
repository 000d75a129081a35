"""KV of prompts that comes into the pool instead of being computed: from a tier, or from another worker.

Its pages are set aside behind a cached prefix, which stays locked meanwhile. What has arrived and is verified
goes to the radix cache, where the request finds it at its admission. It stays locked until then, unless a
request before it needs the pages.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine.core.request import Request
from engine.kv_cache.pages import PagePool, PageState
from engine.kv_cache.radix import Insertion, RadixCache, RadixNode

__all__ = ["ArrivingPrefix", "ArrivingPrefixes", "TakePages", "patience_s"]

_LEAST_PATIENCE_S: Final = 0.5
_FIRST_PATIENCE_S: Final = 5.0

TakePages = Callable[[int, int, PageState], list[int] | None]
"""Count, owner and state to the pages taken; None if there are too few."""


def patience_s(num_tokens: int, prefill_rate: float) -> float:
    """Seconds to wait for the KV of tokens: as long as computing them would take, but not less than 0.5 s.

    `prefill_rate`: tokens a second; math.inf before it was measured.
    """
    if prefill_rate == math.inf:
        return _FIRST_PATIENCE_S
    return max(num_tokens / prefill_rate, _LEAST_PATIENCE_S)


@dataclass(frozen=True, slots=True, eq=False)
class ArrivingPrefix:
    """Pages for KV that arrives."""

    owner: int
    node: RadixNode
    """The cached prefix before it, locked."""
    tokens: array[int]
    pages: list[int]


class ArrivingPrefixes:
    def __init__(self, pool: PagePool, cache: RadixCache, take: TakePages) -> None:
        self._pool = pool
        self._cache = cache
        self._take = take
        self._live: set[ArrivingPrefix] = set()
        self._kept: dict[int, RadixNode] = {}
        """Locked for requests that wait for admission, by request id."""

    @property
    def pages(self) -> list[int]:
        """All that are IN_FLIGHT or QUARANTINED here."""
        return [page for prefix in self._live for page in prefix.pages]

    def begin(self, request: Request, depth: int, count: int, owner: int) -> ArrivingPrefix | None:
        """Set `count` pages aside behind the first `depth` ones of a request, which are cached.

        None if there are too few. `owner`: of the pages until they have arrived.
        """
        size = self._cache.page_size
        node = self._cache.match(request.tokens(0, depth * size)).node
        self._cache.lock(node)
        pages = self._take(count, owner, PageState.IN_FLIGHT)
        if pages is None:
            self._cache.unlock(node)
            return None
        tokens = request.tokens(depth * size, (depth + count) * size)
        prefix = ArrivingPrefix(owner, node, tokens, pages)
        self._live.add(prefix)
        return prefix

    def arrived(self, prefix: ArrivingPrefix, verified: int) -> Insertion:
        """The first `verified` pages have arrived; no write to any page is still under way."""
        inserted = self.insert(prefix, verified)
        self._end(prefix)
        return inserted

    def insert(self, prefix: ArrivingPrefix, verified: int) -> Insertion:
        """The first `verified` pages go to the cache, and the others are free."""
        pages, owner = prefix.pages, prefix.owner
        state = self._pool.state(pages[0])
        self._pool.give_back(pages[verified:], owner, state)
        self._pool.arrived(pages[:verified], owner, owner, state)
        tokens = prefix.tokens[: verified * self._cache.page_size]
        inserted = self._cache.insert(tokens, pages[:verified], after=prefix.node)
        self._pool.to_cache(inserted.adopted, owner)
        self._pool.give_back(pages[: verified - len(inserted.adopted)], owner)
        return inserted

    def quarantine(self, prefix: ArrivingPrefix) -> None:
        """Nobody waits for it any more, but a peer may still write its pages."""
        self._pool.quarantine(prefix.pages, prefix.owner)

    def drained(self, prefix: ArrivingPrefix) -> None:
        """No write can land in the pages of a prefix in quarantine."""
        self._pool.give_back(prefix.pages, prefix.owner, PageState.QUARANTINED)
        self._end(prefix)

    def keep(self, request: Request, node: RadixNode) -> None:
        """Lock what has arrived until the request is admitted, or has ended."""
        self.let_go(request)
        self._cache.lock(node)
        self._kept[request.id] = node

    def let_go(self, request: Request) -> None:
        """No-op if nothing is locked for it."""
        if (node := self._kept.pop(request.id, None)) is not None:
            self._cache.unlock(node)

    def let_all_go(self) -> bool:
        """A request lacks pages: unlock what has arrived for others. False: there is none."""
        kept, self._kept = self._kept, {}
        for node in kept.values():
            self._cache.unlock(node)
        return bool(kept)

    def _end(self, prefix: ArrivingPrefix) -> None:
        self._live.remove(prefix)
        self._cache.unlock(prefix.node)
