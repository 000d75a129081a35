"""Ties the KV pool and the radix cache to the tiers below them.

A waiting request whose prefix continues on a tier waits for that KV: it is copied into pages set aside for
it, verified by digest, and inserted into the radix cache, where the request finds it at its admission. Other
requests pass it meanwhile. What has come up is locked until then, unless a request before it needs the pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias
from weakref import WeakKeyDictionary

from common.block_key import BlockKey, PageKey, block_keys, namespace_key, page_key
from common.kv_groups import kept_places
from engine.core.request import Request
from engine.core.request_state import NO_SLOT
from engine.kv.cache.journal import CacheChange
from engine.kv.cache.page_needs import PageNeeds
from engine.kv.cache.pages import PagePool
from engine.kv.cache.radix import Insertion, Match, RadixCache
from engine.kv.cache.radix_node import RadixNode
from engine.kv.manager.arriving_prefixes import ArrivingPrefix, ArrivingPrefixes, patience_s
from engine.kv.manager.missing_pages import MissingPages, missing_pages
from engine.kv.manager.state_slots import StateSlots
from engine.kv.tiers.jobs import Copier, Job, Promote
from engine.kv.tiers.stats import Tier
from engine.kv.tiers.tiers import KVTiers

PagesOfSlot: TypeAlias = Callable[[int], Sequence[int]]


@dataclass(slots=True)
class TierUse:
    """What tiers have of one request's KV."""

    keys: list[BlockKey] = field(default_factory=list)
    """Keys of its first blocks, as far as they were computed."""
    promoted: dict[Tier, int] = field(default_factory=dict)
    """Tokens whose KV came up for this request, by tier."""
    promotion_s: float = 0.0
    """How long the copies of that KV took, which may overlap with other waits."""
    wait: PromotionWait | None = None
    """Since it waits for KV on a tier, until it is admitted."""
    nothing_at: tuple[int, int, int] | None = None
    """`KVTiers.version`, blocks cached and blocks that can be continued, when tiers had nothing to add."""


class PromotionStatus(Enum):
    """What becomes of KV that tiers have of a waiting request."""

    NOTHING = auto()
    """There is none, or the request has waited for it long enough: it computes what is not cached."""
    SOON = auto()
    """It is being copied."""
    NO_ROOM = auto()
    """The pool has no room for it now."""


@dataclass(frozen=True, slots=True)
class PromotionEstimate:
    comes: PromotionStatus
    takes: int
    """Pages that the request takes of those that were available before, all its tokens counted."""
    searched: bool = True
    """Whether it cost O(tokens)."""


@dataclass(slots=True)
class PromotionWait:
    """A waiting request waits for KV that comes up from a tier."""

    until: float
    """Deadline on the engine's clock; afterwards the KV is computed."""
    version: int = -1
    """`KVTiers.version` when `holds` was decided."""
    holds: bool = False
    first: Sequence[PageKey] = ()
    """Pages of the first block that is lacking. Nothing can be promoted before one of them has come."""
    takes: int = 0
    """Pages that it will still take, beside those into which copies are under way."""


@dataclass(frozen=True, slots=True)
class _Promotion:
    """KV that comes up for a request."""

    prefix: ArrivingPrefix
    known: int
    """Blocks of it that were cached, though perhaps without some pages."""
    since: float


class PageTiers:
    def __init__(
        self,
        needs: PageNeeds,
        pool: PagePool,
        cache: RadixCache,
        states: StateSlots,
        arriving: ArrivingPrefixes,
        tiers: KVTiers,
        copier: Copier,
        root: Callable[[], BlockKey],
        pages_of_slot: PagesOfSlot,
    ) -> None:
        """`root`: see `root_key`; for the weights of now. `pages_of_slot`: those of a slot for states, whose
        numbers are after the pool's. The cache must be empty."""
        cache.keep_journal()
        arriving.on_adopted = self.stored
        self.tiers = tiers
        self._needs = needs
        self._pool = pool
        self._cache = cache
        self._states = states
        self._arriving = arriving
        self._copier = copier
        self._root = root
        self._pages_of_slot = pages_of_slot
        self._state_parts = range(0)
        self._slot_of: dict[int, int] = {}
        """Host slot of each page."""
        if states.used:
            states.copies = self
            self._state_parts = range(needs.stride, needs.stride + len(pages_of_slot(0)))
            slots = range(states.pool.num_pages)
            self._slot_of = {page: slot for slot in slots for page in pages_of_slot(slot)}
        cache.windows.rested = []
        self._prefill_rate = math.inf
        self._uses: WeakKeyDictionary[Request, TierUse] = WeakKeyDictionary()
        self._promotions: dict[int, _Promotion] = {}
        """Promotions under way, by job."""
        self._delayed: list[Job] = []
        """Copies into pages that the step in flight may still write."""

    # ------------------------------------------------------------------------------ the pool

    def stored(self, request: Request, first: int, table: Sequence[int], inserted: Insertion) -> None:
        """The radix cache has adopted pages of `table`, which begins with block `first` of a request."""
        if not inserted.adopted:
            return
        stride, adopted = self._needs.stride, set(inserted.adopted)
        keys = self._keys(request, first + len(table) // stride)
        hashes = inserted.node.hashes(first)
        cached, wanted = [], []
        for place, page in enumerate(table, first * stride):
            if page in adopted:
                block, group = divmod(place, stride)
                cached.append((page_key(keys[block], group), hashes[block], page))
                if self._needs.groups[group].window is None:
                    wanted.append(page)
        self.tiers.cached(cached)
        self.tiers.want(wanted)

    def evicted(self, pages: Sequence[int]) -> None:
        """Free evicted pages, those of copies under way when these have ended."""
        leaving = self.tiers.evicted(pages)
        self._pool.leave(leaving)
        self._pool.from_cache([page for page in pages if page not in set(leaving)] if leaving else pages)

    def revoke(self, request: Request) -> None:
        """The KV of a request is invalid, on whatever tier it is."""
        keys = self._keys(request, request.num_tokens // self._cache.page_size)
        parts = range(self._needs.stride + len(self._state_parts))
        self.tiers.revoke(page_key(key, part) for key in keys for part in parts)

    # ------------------------------------------------------------------------------ checkpoints

    def checkpoint_cached(self, request: Request, node: RadixNode, slot: int) -> None:
        """The cache owns a checkpoint of a request after the last block of `node` from now on."""
        pages = self._pages_of_slot(slot)
        keys, hash = self._state_keys(request, node.depth), node.blocks[-1]
        self.tiers.cached((key, hash, page) for key, page in zip(keys, pages, strict=True))
        self.tiers.want(pages)

    def checkpoint_evicted(self, slot: int) -> bool:
        """The cache has given one up. Whether it is LEAVING."""
        return bool(self.tiers.evicted(self._pages_of_slot(slot)))

    def is_copying(self, slot: int) -> bool:
        """Whether a copy down reads it."""
        return any(map(self.tiers.is_copying, self._pages_of_slot(slot)))

    # ------------------------------------------------------------------------------ requests

    def use_of(self, request: Request) -> TierUse:
        """Kept as long as the request."""
        use = self._uses.get(request)
        if use is None:
            use = self._uses[request] = TierUse()
        return use

    def held_until(self, requests: Iterable[Request]) -> float:
        """When the first of them gives up waiting for KV on a tier; math.inf: none waits for that."""
        waits = [use.wait for request in requests if (use := self._uses.get(request)) is not None]
        return min((wait.until for wait in waits if wait is not None and wait.holds), default=math.inf)

    def stop_waiting(self, request: Request) -> None:
        self.use_of(request).wait = None

    def expected_tokens(self, request: Request, cached: int) -> int:
        """Tokens on a tier that follow the `cached` ones of a new request. O(tokens)."""
        size = self._cache.page_size
        found, _ = self._missing(request)
        end = cached // size if found is None else found.end
        keys = self._keys(request, end)
        kept = kept_places(self._needs.groups, size, end * size, range(end))
        touched = [page_key(keys[place // self._needs.stride], place % self._needs.stride) for place in kept]
        self.tiers.touch(touched + (self._state_keys(request, end) if end else []))
        return end * size - cached

    def prospect(self, request: Request, room: int, now: float) -> PromotionEstimate:
        """What tiers have of a waiting request; orders what is missing, if that fits.

        `room`: pages that it could have now. Costs O(1) while KV is under way to it, else O(tokens).
        """
        use = self.use_of(request)
        wait = use.wait
        if wait is not None and wait.holds and now < wait.until and self._still_comes(wait):
            return PromotionEstimate(PromotionStatus.SOON, wait.takes, searched=False)
        found, known = self._missing(request)
        new = self._needs.pages(self._needs.blocks(request.num_tokens) - known.blocks)
        takes = new + self._needs.pages(self._cache.unlocked(known)) - self._set_aside_for(request)
        if wait is not None and now >= wait.until:
            wait.holds = False
            self._arriving.let_go(request)
            return PromotionEstimate(PromotionStatus.NOTHING, takes)
        holds, available, first = False, 0, list[PageKey]()
        if found is not None:
            available = max(1, found.end - found.first) * self._cache.page_size
            first = self._first(request, found)
            lacks_room = max(len(found.places), takes) > room
            if lacks_room and not any(map(self.tiers.is_coming, first)):  # else it has its pages already
                return PromotionEstimate(PromotionStatus.NO_ROOM, takes)
            self._bring(request, found, known.blocks, now)
            holds = any(map(self.tiers.is_coming, first))
        if wait is None:
            if not holds:
                return PromotionEstimate(PromotionStatus.NOTHING, takes)
            wait = use.wait = PromotionWait(now + patience_s(available, self._prefill_rate))
        wait.version, wait.holds, wait.first = self.tiers.version, holds, first
        wait.takes = new - self._set_aside_for(request)  # what is cached is locked from now on
        return PromotionEstimate(PromotionStatus.SOON if holds else PromotionStatus.NOTHING, takes)

    # ------------------------------------------------------------------------------ copies

    def poll_tiers(self, now: float, *, settled: bool, prefill_rate: float) -> None:
        """Take the results of copies, and order others.

        `settled`: no step is in flight. `prefill_rate`: prompt tokens that the engine computes a second.
        """
        self._prefill_rate = prefill_rate
        if settled:
            self.settle()
        ended = self.tiers.ended(self._copier.poll(), now)
        self._left(ended.freed)
        for job, sources in ended.promotions:
            self._arrived(self._promotions.pop(job), sources, now)
        self.tiers.plan(self._pool.num_free + self._cache.windows.num_passed, now)

    def send(self, may_be_written: Callable[[Sequence[int]], bool]) -> None:
        """Start the copies ordered. Those into pages that the step in flight may write wait for `settle`."""
        for job in self.tiers.take_jobs():
            if isinstance(job, Promote) and may_be_written(job.pages):
                self._delayed.append(job)
            else:
                self._copier.submit(job)

    def settle(self) -> None:
        """The step that was in flight has completed."""
        self.tiers.want(self._cache.windows.take_rested())
        self.tiers.settle()
        for job in self._delayed:
            self._copier.submit(job)
        self._delayed.clear()

    def take_changes(self) -> list[CacheChange]:
        changes = self._cache.take_changes()  # those of the tiers include them, if a group is full
        return self.tiers.take_changes() if self._needs.num_full else changes

    def contents(self) -> list[CacheChange]:
        """All blocks in the radix cache and on tiers, as changes."""
        return self.tiers.contents() if self._needs.num_full else [CacheChange(True, self._cache.blocks())]

    # ------------------------------------------------------------------------------ inside

    def _missing(self, request: Request) -> tuple[MissingPages | None, Match]:
        """What tiers have of the longest prefix of a request, and what of it is cached.

        O(tokens); the search on the tiers is left out if it found nothing, and nothing has changed since.
        """
        size, use = self._cache.page_size, self.use_of(request)
        limit = request.num_sought // size
        known = self._cache.known(request.keys(0, limit * size), self._cache.root(request.namespace))
        usable, checkpoints = self._cache.usable(known), None
        if self._states.used:
            usable, checkpoints = self._states.usable_depth(known), self._states.depths(known)
        searched = self.tiers.version, known.blocks, usable
        if use.nothing_at == searched:
            return None, known
        keys = self._keys(request, limit)
        found = missing_pages(
            self._needs,
            known.pages,
            checkpoints,
            usable,
            limit,
            lambda block, part: page_key(keys[block], part) in self.tiers,
            len(self._state_parts),
        )
        use.nothing_at = searched if found is None else None
        return found, known

    def _still_comes(self, wait: PromotionWait) -> bool:
        """Whether a request waits on as decided. With a tier below the host, more may be loaded for it."""
        is_same = wait.version == self.tiers.version
        return is_same or (not self.tiers.disk.num_slots and any(map(self.tiers.is_coming, wait.first)))

    def _bring(self, request: Request, found: MissingPages, known: int, now: float) -> None:
        """Order copies of what is lacking, as far as there is room."""
        stride, wanted = self._needs.stride, self._wanted(request, found)
        ready = self.tiers.ready(wanted)
        part = found if ready == len(wanted) else found.part(min(ready, len(found.places)), stride)
        if part.places or part.state:
            keys_of_part = wanted if part is found else wanted[: len(part.places)]
            self._promote(request, part, keys_of_part, known, found.end, now)
        self.tiers.load(wanted[ready:])  # last, since it may take the place of copies that nothing reads

    def _wanted(self, request: Request, found: MissingPages) -> list[PageKey]:
        """Keys of what is lacking."""
        stride, keys = self._needs.stride, self._keys(request, found.end)
        wanted = [page_key(keys[place // stride], place % stride) for place in found.places]
        return wanted + (self._state_keys(request, found.end) if found.state else [])

    def _set_aside_for(self, request: Request) -> int:
        """Pages into which copies for a request are under way."""
        arriving = (promotion.prefix for promotion in self._promotions.values())
        return sum(len(prefix.pages) for prefix in arriving if prefix.request is request)

    def _first(self, request: Request, found: MissingPages) -> list[PageKey]:
        """Keys of the first block that is lacking, or of the state if no block is."""
        stride, places = self._needs.stride, found.places
        if not places:
            return self._state_keys(request, found.end)
        key = self._keys(request, found.end)[places[0] // stride]
        return [page_key(key, p % stride) for p in places[:stride] if p // stride == places[0] // stride]

    def _promote(
        self, request: Request, part: MissingPages, keys: Sequence[PageKey], known: int, end: int, now: float
    ) -> None:
        """Order the copies of a part of what the request lacks up to block `end`."""
        prefix = self._arriving.begin(request, part, end * self._cache.page_size, request.id)
        if prefix is not None:
            pages = [*prefix.pages, *(() if prefix.slot == NO_SLOT else self._pages_of_slot(prefix.slot))]
            self._promotions[self.tiers.promote(keys, pages)] = _Promotion(prefix, known, now)

    def _arrived(self, promotion: _Promotion, sources: Sequence[Tier], now: float) -> None:
        """`sources` of the pages that are verified, from the first on."""
        prefix, stride = promotion.prefix, self._needs.stride
        request, verified = prefix.request, len(sources)
        end = prefix.end
        if verified < len(prefix.places):
            end = prefix.places[verified] // stride
        blocks = {
            place // stride: tier
            for place, tier in zip(prefix.places, sources, strict=False)
            if promotion.known <= place // stride < end
        }
        use = self.use_of(request)
        for tier in blocks.values():
            use.promoted[tier] = use.promoted.get(tier, 0) + self._cache.page_size
        use.promotion_s += now - promotion.since
        whole = verified == len(prefix.places) + (prefix.slot != NO_SLOT) * len(self._state_parts)
        node = self._arriving.arrived(prefix, end, with_state=whole)
        if use.wait is not None and request.finish is None:
            self._arriving.keep(prefix, node)

    def _left(self, pages: Sequence[int]) -> None:
        """The copies of these LEAVING pages have ended."""
        slots = {self._slot_of[page]: None for page in pages if page in self._slot_of}
        self._pool.left([page for page in pages if page not in self._slot_of])
        for slot in slots:
            if not self.is_copying(slot):
                self._states.pool.left([slot])

    def _state_keys(self, request: Request, end: int) -> list[PageKey]:
        """Keys of the state after block `end` - 1."""
        key = self._keys(request, end)[-1]
        return [page_key(key, part) for part in self._state_parts]

    def _keys(self, request: Request, end: int) -> Sequence[BlockKey]:
        """Keys of the first `end` blocks. A request keeps those that were computed."""
        known, size = self.use_of(request).keys, self._cache.page_size
        if len(known) < end:
            before = known[-1] if known else namespace_key(self._root(), request.namespace)
            known += block_keys(request.keys(len(known) * size, end * size), size, before)
        return known[:end]
