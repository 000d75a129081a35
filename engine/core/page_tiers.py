"""Ties the KV pool and the radix cache to the tiers below them.

A waiting request whose prefix continues on a tier waits for that KV: it is copied into pages set aside for
it, verified by digest, and inserted into the radix cache, where the request finds it at its admission. Other
requests pass it meanwhile. What has come up is locked until then, unless a request before it needs the pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.block_key import BlockKey, block_keys
from engine.core.arriving_prefixes import ArrivingPrefix, ArrivingPrefixes, patience_s
from engine.core.request import PromotionWait, Request
from engine.kv_cache.journal import CacheChange
from engine.kv_cache.pages import PagePool
from engine.kv_cache.radix import Insertion, RadixCache
from engine.kv_tiers.jobs import Copier, Job, Promote
from engine.kv_tiers.stats import Tier
from engine.kv_tiers.tiers import KVTiers

__all__ = ["PageTiers"]


@dataclass(frozen=True, slots=True)
class _Promotion:
    """KV that comes up for a request."""

    request: Request
    prefix: ArrivingPrefix
    keys: Sequence[BlockKey]
    since: float


class PageTiers:
    def __init__(
        self,
        pool: PagePool,
        cache: RadixCache,
        arriving: ArrivingPrefixes,
        tiers: KVTiers,
        copier: Copier,
        root: BlockKey,
    ) -> None:
        """`root`: the key before a sequence's first page. The cache must be empty."""
        cache.keep_journal()
        self.tiers = tiers
        self._pool = pool
        self._cache = cache
        self._arriving = arriving
        self._copier = copier
        self._root = root
        self._prefill_rate = math.inf
        self._promotions: dict[int, _Promotion] = {}
        """By job."""
        self._delayed: list[Job] = []
        """Copies into pages that the step in flight may still write."""

    # ------------------------------------------------------------------------------ the pool

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
            self._arriving.let_go(request)
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
            self._bring(request, depth, keys[depth : depth + available], now)
            holds = self.tiers.is_coming(keys[depth])
        if wait is None:
            if not holds:
                return False
            wait = request.promotion = PromotionWait(now + patience_s(available * size, self._prefill_rate))
        wait.version, wait.holds = self.tiers.version, holds
        return holds

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
            self._arrived(self._promotions.pop(job), sources, now)
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

    def _bring(self, request: Request, depth: int, keys: Sequence[BlockKey], now: float) -> None:
        """Order copies of blocks that follow `depth` cached pages, as far as there is room."""
        ready = self.tiers.ready(keys)
        if ready:
            self._promote(request, depth, keys[:ready], now)
        self.tiers.load(keys[ready:])  # last, since it may take the place of copies that nothing reads

    def _promote(self, request: Request, depth: int, keys: Sequence[BlockKey], now: float) -> None:
        prefix = self._arriving.begin(request, depth, len(keys), request.id)
        if prefix is not None:
            self._promotions[self.tiers.promote(keys, prefix.pages)] = _Promotion(request, prefix, keys, now)

    def _arrived(self, promotion: _Promotion, sources: Sequence[Tier], now: float) -> None:
        """`sources` of the pages that are verified, from the first on."""
        request, verified = promotion.request, len(sources)
        for tier in sources:
            request.promoted[tier] = request.promoted.get(tier, 0) + self._cache.page_size
        request.promotion_s += now - promotion.since
        inserted = self._arriving.arrived(promotion.prefix, verified)
        self._cached(promotion.keys[verified - len(inserted.adopted) : verified], inserted)
        if request.promotion is not None and request.finish is None:
            self._arriving.keep(request, inserted.node)

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
