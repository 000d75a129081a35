"""Ties the KV pool and the radix cache to the tiers below them.

A waiting request whose prefix continues on a tier waits for that KV: it is copied into pages set aside for
it, verified by digest, and inserted into the radix cache, where the request finds it at its admission. Other
requests pass it meanwhile. What has come up is locked until then, unless a request before it needs the pages.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from common.block_key import BlockKey, block_keys
from engine.core.request import PromotionWait, Request
from engine.kv_cache.journal import CacheChange
from engine.kv_cache.pages import PagePool, PageState
from engine.kv_cache.radix import Insertion, RadixCache, RadixNode
from engine.kv_tiers.jobs import Copier, Job, Promote
from engine.kv_tiers.stats import Tier
from engine.kv_tiers.tiers import KVTiers

__all__ = ["PageTiers", "TakePages"]

_LEAST_PATIENCE_S: Final = 0.5
"""KV on a tier is waited for as long as computing it would take, or this long if that is less."""

_FIRST_PATIENCE_S: Final = 5.0
"""The same, before the rate of computing was measured."""

TakePages = Callable[[int, int, PageState], list[int] | None]
"""Count, owner and state to the pages taken; None if there are too few."""


@dataclass(frozen=True, slots=True)
class _Promotion:
    """Pages IN_FLIGHT for KV that comes up. Its node is locked."""

    request: Request
    node: RadixNode
    tokens: array[int]
    keys: Sequence[BlockKey]
    pages: list[int]

    @property
    def owner(self) -> int:
        return _owner(self.request)


class PageTiers:
    def __init__(
        self,
        pool: PagePool,
        cache: RadixCache,
        take: TakePages,
        tiers: KVTiers,
        copier: Copier,
        root: BlockKey,
    ) -> None:
        """`root`: the key before a sequence's first page. The cache must be empty."""
        cache.keep_journal()
        self.tiers = tiers
        self._pool = pool
        self._cache = cache
        self._take = take
        self._copier = copier
        self._root = root
        self._prefill_rate = math.inf
        self._promotions: dict[int, _Promotion] = {}
        """By job."""
        self._kept: dict[int, RadixNode] = {}
        """Locked for waiting requests whose KV has come up, by request number."""
        self._delayed: list[Job] = []
        """Copies into pages that the step in flight may still write."""

    # ------------------------------------------------------------------------------ the pool

    @property
    def promoting(self) -> list[int]:
        """Pages set aside for KV that comes up."""
        return [page for promotion in self._promotions.values() for page in promotion.pages]

    def stored(self, request: Request, end: int, inserted: Insertion) -> None:
        """The radix cache has adopted pages of a request, of which the last is page `end` - 1."""
        begin = end - len(inserted.adopted)
        self._cached(self._keys(request, end)[begin:], inserted)

    def evicted(self, pages: Sequence[int]) -> None:
        """Free evicted pages, those of copies under way when these have ended."""
        leaving = self.tiers.evicted(pages)
        self._pool.leave(leaving)
        self._pool.from_cache([page for page in pages if page not in set(leaving)] if leaving else pages)

    def revoke(self, request: Request) -> None:
        """The KV of a request is invalid, on whatever tier it is."""
        self.tiers.revoke(self._keys(request, request.num_tokens // self._cache.page_size))

    # ------------------------------------------------------------------------------ requests

    def expected_tokens(self, request: Request, cached: int) -> int:
        """Tokens on a tier that follow the `cached` ones of a new request. O(tokens)."""
        size = self._cache.page_size
        keys = self._keys(request, request.num_reusable // size)
        self.tiers.touch(keys)
        return self.tiers.holds(keys[cached // size :]) * size

    def holds_back(self, request: Request, room: int, now: float, *, is_first: bool) -> bool:
        """Whether a waiting request should wait for KV that comes up; orders what is missing.

        `room`: pages that it could have now. `is_first`: no request before it is held back; else it waits
        for room too, rather than compute what is on a tier. Costs O(tokens) when something has changed, else
        O(1).
        """
        wait, version = request.promotion, self.tiers.version
        if wait is not None and now >= wait.until:
            wait.holds = False
            self.let_go(request)
            return False
        if wait is not None and wait.holds and wait.version == version:
            return True
        size = self._cache.page_size
        limit = request.num_reusable // size
        keys = self._keys(request, limit)
        depth = len(self._cache.match(request.tokens(0, limit * size), touch=False).pages)
        available = self.tiers.holds(keys[depth:])
        lacking = -(-request.num_tokens // size) - depth
        holds = False
        if lacking > room:
            return available > 0 and not is_first
        if depth < limit:
            self._bring(request, depth, keys[depth : depth + available])
            holds = self.tiers.is_coming(keys[depth])
        if wait is None:
            if not holds:
                return False
            wait = request.promotion = PromotionWait(now + self._patience(available * size))
        wait.version, wait.holds = self.tiers.version, holds
        return holds

    def let_go(self, request: Request) -> None:
        """The request needs no lock on KV that came up for it: it was admitted, or has ended."""
        if (node := self._kept.pop(request.number, None)) is not None:
            self._cache.unlock(node)

    def let_all_go(self) -> bool:
        """A request lacks pages: unlock what has come up for others. False: there is none."""
        kept, self._kept = self._kept, {}
        for node in kept.values():
            self._cache.unlock(node)
        return bool(kept)

    # ------------------------------------------------------------------------------ copies

    def tend(self, now: float, *, settled: bool, prefill_rate: float) -> None:
        """Take the results of copies, and order others.

        `settled`: no step is in flight. `prefill_rate`: prompt tokens that the engine computes a second.
        """
        self._prefill_rate = prefill_rate
        if settled:
            self.settle()
        ended = self.tiers.ended(self._copier.poll(), now)
        self._pool.left(ended.freed)
        for job, sources in ended.promotions:
            self._arrived(self._promotions.pop(job), sources)
        self.tiers.plan(self._pool.num_free, now)

    def send(self, may_be_written: Callable[[Sequence[int]], bool]) -> None:
        """Start the copies ordered. Those into pages that the step in flight may write wait for `settle`."""
        for job in self.tiers.take_jobs():
            if isinstance(job, Promote) and may_be_written(job.pages):
                self._delayed.append(job)
            else:
                self._copier.submit(job)

    def settle(self) -> None:
        """The step that was in flight has completed."""
        self.tiers.settle()
        for job in self._delayed:
            self._copier.submit(job)
        self._delayed.clear()

    def take_changes(self) -> list[CacheChange]:
        self._cache.take_changes()  # the tiers' journal includes them
        return self.tiers.take_changes()

    # ------------------------------------------------------------------------------ inside

    def _patience(self, num_tokens: int) -> float:
        """Seconds to wait for the KV of this many tokens."""
        if self._prefill_rate == math.inf:
            return _FIRST_PATIENCE_S
        return max(num_tokens / self._prefill_rate, _LEAST_PATIENCE_S)

    def _bring(self, request: Request, depth: int, keys: Sequence[BlockKey]) -> None:
        """Order copies of blocks that follow `depth` cached pages, as far as there is room."""
        ready = self.tiers.ready(keys)
        if ready:
            self._promote(request, depth, keys[:ready])
        self.tiers.load(keys[ready:])  # last, since it may take the place of copies that nothing reads

    def _promote(self, request: Request, depth: int, keys: Sequence[BlockKey]) -> None:
        size = self._cache.page_size
        node = self._cache.match(request.tokens(0, depth * size)).node
        self._cache.lock(node)
        pages = self._take(len(keys), _owner(request), PageState.IN_FLIGHT)
        if pages is None:
            self._cache.unlock(node)
            return
        tokens = request.tokens(depth * size, (depth + len(keys)) * size)
        job = self.tiers.promote(keys, pages)
        self._promotions[job] = _Promotion(request, node, tokens, keys, pages)

    def _arrived(self, promotion: _Promotion, sources: Sequence[Tier]) -> None:
        """`sources` of the pages that are verified, from the first on."""
        owner, pages, verified = promotion.owner, promotion.pages, len(sources)
        for tier in sources:
            promotion.request.promoted[tier] = promotion.request.promoted.get(tier, 0) + self._cache.page_size
        self._pool.give_back(pages[verified:], owner, PageState.IN_FLIGHT)
        self._pool.arrived(pages[:verified], owner, owner)
        tokens = promotion.tokens[: verified * self._cache.page_size]
        inserted = self._cache.insert(tokens, pages[:verified], after=promotion.node)
        known = verified - len(inserted.adopted)
        self._pool.to_cache(inserted.adopted, owner)
        self._pool.give_back(pages[:known], owner)
        self._cached(promotion.keys[known:verified], inserted)
        if promotion.request.promotion is not None and promotion.request.finish is None:
            self.let_go(promotion.request)
            self._cache.lock(inserted.node)
            self._kept[promotion.request.number] = inserted.node
        self._cache.unlock(promotion.node)

    def _cached(self, keys: Sequence[BlockKey], inserted: Insertion) -> None:
        if inserted.adopted:
            self.tiers.cached(zip(keys, inserted.node.blocks, inserted.adopted, strict=True))

    def _keys(self, request: Request, end: int) -> Sequence[BlockKey]:
        """Keys of the first `end` pages. A request keeps those that were computed."""
        known, size = request.block_keys, self._cache.page_size
        if len(known) < end:
            tokens = request.tokens(len(known) * size, end * size)
            known += block_keys(tokens, size, known[-1] if known else self._root)
        return known[:end]


def _owner(request: Request) -> int:
    """Owner of the pages of its promotion; those of requests and handoffs are not negative."""
    return -1 - request.number
