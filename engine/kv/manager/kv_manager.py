"""Allocates KV pages to requests: keeps the pool's accounts and the radix cache consistent.

A request holds a lock on the deepest node of the cache whose pages are in its block table. Pages behind a
window go to the cache or the pool, and the prompt takes as many for the tokens ahead, so those with which it
was admitted suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from common.block_hash import BlockHash
from common.block_key import BlockKey
from common.kv_groups import NO_PAGE, ONE_GROUP, KVGroup
from common.sidecars import SidecarKind
from engine.core.request import Request
from engine.errors import EngineError
from engine.kv.cache.journal import CacheChange
from engine.kv.cache.page_needs import PageNeeds
from engine.kv.cache.pages import PageCounts, PagePool, PageState
from engine.kv.cache.radix import WHATEVER_IS_THERE, RadixCache
from engine.kv.cache.retention import Retentions
from engine.kv.cache.sidecars import Sidecars
from engine.kv.manager.arriving_prefixes import ArrivingPrefixes
from engine.kv.manager.block_tables import BlockTableAllocator
from engine.kv.manager.cache_locks import CacheLocks
from engine.kv.manager.own_pages import OwnPages
from engine.kv.manager.page_audit import check_pages
from engine.kv.manager.page_supply import PageSupply
from engine.kv.manager.page_tiers import PagesOfSlot, PageTiers
from engine.kv.manager.peer_prefixes import PeerPrefixes
from engine.kv.manager.prefix_holds import PrefixHolds
from engine.kv.manager.prompt_scores import PromptScores
from engine.kv.manager.reservations import Reservation, Reservations
from engine.kv.manager.routed_rows import RoutedRows
from engine.kv.manager.state_slots import StateSlots
from engine.kv.tiers.jobs import Copier
from engine.kv.tiers.tiers import KVTiers


class KVManager:
    """Every method that takes pages for a request takes all or none, and returns whether it did."""

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        groups: Sequence[KVGroup] = ONE_GROUP,
        largest_chunk: int | None = None,
        radix_cache: bool = True,
        num_state_slots: int = 0,
        retained_share: float = 0.0,
        sidecars: Sequence[SidecarKind] = (),
    ) -> None:
        """`largest_chunk`: of a prompt; None: prompts may be computed whole. `num_state_slots`: 0 for models
        without a recurrent state. `retained_share`: of the pool and of tiers, that a tenant may retain.

        Raises EngineError if the pool has no room for one block.
        """
        if num_pages < len(groups):
            raise EngineError(
                f"a KV pool of {num_pages} pages holds no request: a block of {page_size} tokens takes"
                f" {len(groups)}; raise --kv-memory-fraction or --kv-pool-tokens"
            )
        self.page_size = page_size
        self.needs = PageNeeds(page_size, groups, largest_chunk)
        self.pool = PagePool(num_pages)
        self.retentions = Retentions(int(retained_share * num_pages) // len(groups))
        self.states = StateSlots(num_state_slots, page_size, self.retentions)
        assert not (self.needs.windowed and self.states.used), "a hit must end where both can continue"
        self._retained_share = retained_share
        self.cache = RadixCache(
            page_size, groups, enabled=radix_cache, trimmed=self.states.drop, spared=self.retentions
        )
        self._windows = self.cache.windows
        self._stride = self.needs.stride
        self.locks = CacheLocks(self.cache)
        self.tiers: PageTiers | None = None
        self.sidecars = Sidecars(num_pages, page_size, sidecars)
        self._supply = PageSupply(self.pool, self.cache, self.sidecars, lambda: self.unlock_arrived())
        self.tables = BlockTableAllocator(self.needs, self.pool, self._windows, self._supply.take_most)
        own = OwnPages(self.needs, self.pool)
        self.scores = PromptScores(self.sidecars, own, self.cache)
        self.routed = RoutedRows(self.sidecars, own, self.cache, self.scores)
        self.holds = PrefixHolds(self.needs, self.cache, self.states)
        self.arriving = ArrivingPrefixes(
            self.pool, self.cache, self.holds, self.states, self.needs, self._supply.take
        )
        self.peers = PeerPrefixes(
            self.needs,
            self.cache,
            self.states,
            self.arriving,
            self.holds,
            cached_tokens=self.sought_tokens,
            num_available=lambda: self.num_available,
        )
        self.reservations = Reservations(self.pool, self.states)

    def use_tiers(
        self, tiers: KVTiers, copier: Copier, root: Callable[[], BlockKey], pages_of_slot: PagesOfSlot
    ) -> None:
        """Evicted pages go down to `tiers`, and come up again. `root`, `pages_of_slot`: see `PageTiers`.

        Raises EngineError without a radix cache.
        """
        if not self.cache.enabled:
            raise EngineError("KV tiers need the radix cache")
        self.tiers = self._supply.tiers = PageTiers(
            self.needs, self.pool, self.cache, self.states, self.arriving, tiers, copier, root, pages_of_slot
        )
        slots = tiers.host.num_slots + tiers.disk.num_slots
        self.retentions.budget += int(self._retained_share * slots) // self._stride
        tiers.host.spare(self.retentions)
        tiers.disk.spare(self.retentions)

    @property
    def num_available(self) -> int:
        """Pages that are free, or would be at once if they were evicted."""
        return self._supply.num_available

    @property
    def num_usable(self) -> int:
        """Pages that are not in quarantine."""
        return self.pool.num_pages - self.pool.counts().quarantined

    @property
    def num_returning(self) -> int:
        """Pages that will be available as soon as copies under way have ended."""
        return self.tiers.tiers.num_returning if self.tiers else 0

    def admit(self, request: Request, headroom: Callable[[int], int]) -> bool:
        """Give a waiting request pages for all its tokens, its cached prefix first.

        Returns False and changes nothing if fewer pages than `headroom(alone)` would stay available, where
        `alone` is the number of pages that the request would not share. `headroom` must not grow with it.
        """
        return self._begin(request, headroom, PageState.HELD) is not None

    def cached_tokens(self, request: Request) -> int:
        """Tokens of a request that need not be computed. O(tokens)."""
        return self._cached(request, request.num_reusable)

    def sought_tokens(self, request: Request) -> int:
        """Tokens of a request whose KV need not come from elsewhere. O(tokens)."""
        return self._cached(request, request.num_sought)

    def _cached(self, request: Request, num_tokens: int) -> int:
        if not self.cache.enabled:
            return 0
        keys = request.keys(0, num_tokens)
        found = self.cache.match(keys, self.cache.root(request.namespace), touch=False)
        return self.states.usable_depth(found) * self.page_size

    def pages_alone(self, request: Request) -> int:
        """Pages that become available when the request ends: its own, and cached ones with no other reader.

        O(nodes of the cache that only this request reads).
        """
        blocks = len(request.pages) // self._stride
        return self.needs.pages(blocks - self.locks.shared_blocks(request))

    def catch_up(self, request: Request) -> None:
        """Reuse KV that other requests have computed for this prompt since it was admitted."""
        node = self.locks.of(request)
        if node is None:
            return
        at = node.depth * self.page_size
        if at != request.num_computed:
            return  # its previous chunk is still in flight
        self.routed.look_up(request)
        found = self.cache.match(request.keys(at, request.num_reusable), node)
        if not found.pages:
            return
        first = node.depth
        part = slice(first * self._stride, first * self._stride + len(found.pages))
        ours = request.pages[part]
        self.locks.move(request, found.node)
        request.num_computed += found.blocks * self.page_size
        request.pages[part] = self.tables.found(found.pages, first, request.num_computed)
        request.capacity = max(request.capacity, request.num_computed)
        self.pool.give_back([page for page in ours if page != NO_PAGE], request.id)
        self.tables.pass_by(request, request.num_computed)
        self.scores.inherit(request)

    def grow(self, request: Request, upto: int) -> bool:
        """Allocate pages for the next token, or for those before `upto` of a prompt, if they need some; False
        if there are too few."""
        if request.num_computed >= len(request.pages) // self._stride * self.page_size:
            pages = self._supply.take(self._stride, request.id, PageState.HELD)
            if pages is None:
                return False
            request.pages += pages
            request.capacity += self.page_size
        elif upto > request.capacity:
            self.tables.fill(request)
        return upto <= request.capacity

    def room_for(self, request: Request, tokens: int, *, spare: int) -> int:
        """How many of the next `tokens` tokens have room, with pages taken where more than `spare` stay."""
        blocks = self.needs.blocks(request.num_computed + tokens - request.capacity)
        missing = blocks * self._stride
        if missing > 0 and self.num_available - missing > spare:
            pages = self._supply.take(missing, request.id, PageState.HELD)
            if pages is not None:
                request.pages += pages
                request.capacity += blocks * self.page_size
        return min(tokens, request.capacity - request.num_computed)

    def store(self, request: Request, upto: int) -> None:
        """Tokens [0, upto) are computed: insert their full pages into the radix cache."""
        if request.state is not None:
            for save in [save for save in request.state.saves if save.position <= upto]:
                self._store_pages(request, save.position)
                if (node := self.locks.of(request)) is not None:
                    self.states.attach(request, save, node)
        self._store_pages(request, upto)

    def _store_pages(self, request: Request, upto: int) -> None:
        node = self.locks.of(request)
        if node is None or not self.cache.enabled:
            return
        first, end = node.depth, upto // self.page_size
        if end <= first:
            return
        keys = request.keys(first * self.page_size, end * self.page_size)
        pages = request.pages[first * self._stride : end * self._stride]
        leaves_rows = request.routed_experts or self.scores.wanted_by(request)
        there = self.cache.known(keys, node).pages if leaves_rows else []
        inserted = self.cache.insert(keys, pages, node)
        self.scores.merge(pages, there)
        self.pool.to_cache(inserted.adopted, request.id)
        self._windows.read(self._windows.among(inserted.adopted))
        if self.tiers is not None:
            self.tiers.stored(request, first, pages, inserted)
        self.locks.move(request, inserted.node)

    def release(self, request: Request, *, keep: bool = True) -> None:
        """Release all pages of a request. Computed ones stay in the cache until evicted.

        keep=False: its KV is invalid, so the part that is cached already is dropped too.
        """
        if keep and request.pages:
            self.store(request, min(request.num_computed, request.num_known))
        self.stop_waiting(request)
        self.pool.give_back(self.tables.held_by(request), request.id)
        self.states.release(request, request.id)
        self._drop_cached_part(request)
        if not keep:
            self.forget(request)

    def retain(self, request: Request, now: float) -> None:
        """A request is complete: retain what is computed of it, if its client wants that. O(blocks)."""
        if request.retention is None or not self.cache.enabled:
            return
        self.store(request, min(request.num_computed, request.num_known))
        if (node := self.locks.of(request)) is not None:
            retention, blocks = request.retention, node.path_blocks()
            for part, seconds in retention.parts(blocks, self.page_size):
                self.retentions.retain(request.tenant, retention.key, part, seconds, now)

    @property
    def num_retained(self) -> int:
        """Blocks that clients have asked to keep, cached or not."""
        return len(self.retentions)

    def expire(self, now: float) -> None:
        """End what is retained until now. O(1) unless something ends."""
        self.retentions.expire(now)

    def release_session(self, tenant: str, key: str) -> None:
        """End what a session of a tenant retains. O(blocks)."""
        self.retentions.release(tenant, key)

    def forget(self, request: Request) -> None:
        """Drop the cached KV of a request that has no pages any more, because it is invalid. O(tokens).

        It is found by the request's keys.
        """
        keys, root = request.keys(0, request.num_tokens), self.cache.root(request.namespace)
        found = self.cache.match(keys, root, resume=WHATEVER_IS_THERE)
        self._supply.evicted(self.cache.forget(found.node))
        if self.tiers is not None:
            self.tiers.revoke(request)

    def clear(self, blocks: Collection[BlockHash] | None) -> int:
        """Evict these blocks from the radix cache, or all (None), as far as no request reads them; returns
        how many pages. O(nodes of the cache)."""
        pages = self.cache.evict(self.cache.num_pages) if blocks is None else self.cache.drop_blocks(blocks)
        self._supply.evicted(pages)
        return len(pages)

    def reserve(self, request: Request, headroom: int, room: int = 0) -> Reservation | None:
        """Set pages aside for a request whose KV another worker will send; None if there are too few.

        `room`: tokens by which it may grow until then.
        """
        incoming = self._begin(request, lambda _: headroom, PageState.IN_FLIGHT, room)
        if incoming is None:
            return None
        return self.reservations.add(Reservation(request, request.num_computed, incoming))

    def quarantine(self, reservation: Reservation) -> None:
        """Abort a handoff whose peer may still write. Its pages stay unusable until `free_reservation`."""
        self.reservations.quarantine(reservation)
        self._drop_cached_part(reservation.request)

    def free_reservation(self, reservation: Reservation, verified: int = 0) -> None:
        """Free the pages of a handoff: no write can land in them any more.

        The first `verified` ones have KV that may be used, and go to the cache.
        """
        self._drop_cached_part(reservation.request)  # it reads none of the pages that are kept
        self.reservations.free(reservation, self.arriving.keep_verified(reservation, verified))

    def unlock_arrived(self) -> bool:
        """Unlock what has arrived for waiting requests. False: there is none."""
        return self.arriving.unlock_arrived()

    def contents(self) -> list[CacheChange]:
        """All blocks in the radix cache and on tiers, as changes; empty unless the cache keeps a journal."""
        if self.tiers is not None:
            return self.tiers.contents()
        return [CacheChange(True, self.cache.blocks())]

    def take_changes(self) -> list[CacheChange]:
        """Changes of `contents` since the last call, in order."""
        return (self.tiers or self.cache).take_changes()

    def check(self, owners: list[Request]) -> PageCounts:
        """Check that every page has exactly one owner; `owners` are all requests that may have pages.

        Costs O(pages in the pool). Raises PageLeak.
        """
        return check_pages(
            owners,
            self.reservations.all(),
            pool=self.pool,
            cache=self.cache,
            tables=self.tables,
            arriving=self.arriving,
            holds=self.holds,
            states=self.states,
            leaving=frozenset() if self.tiers is None else self.tiers.tiers.leaving,
        )

    def _begin(
        self, request: Request, headroom: Callable[[int], int], state: PageState, room: int = 0
    ) -> list[int] | None:
        """Match, lock, take the rest in `state`; returns the pages taken. All or nothing."""
        needs, blocks = self.needs, self.needs.blocks(request.num_tokens + room)
        if headroom(needs.pages(blocks)) >= self.num_available:
            return None  # it does not fit even without sharing, so skip the search
        arrives = state is PageState.IN_FLIGHT
        self.routed.look_up(request)
        position = request.num_tokens - 1 if arrives else 0  # what arrives is computed up to here or beyond
        keys, root = request.keys(0, request.num_reusable), self.cache.root(request.namespace)
        found = self.cache.match(keys, root, resume=position)
        branch = found.node.depth
        if not arrives:  # else a peer sends the state
            found = self.states.usable(found)
        self.locks.move(request, found.node)
        cached = found.blocks
        request.pages = self.tables.found(found.pages, 0, max(position, cached * self.page_size))
        if not self.states.begin(request, None if arrives else found, branch, state):
            self._drop_cached_part(request)
            return None
        new = range(cached, blocks)
        places = needs.places_of_arriving(new, position) if arrives else needs.places(new)
        alone = needs.pages(blocks - self.locks.shared_blocks(request))
        fits = len(places) + headroom(alone) <= self.num_available
        fresh = self._supply.take(len(places), request.id, state) if fits else None
        if fresh is None:
            self.states.release(request, request.id, state)
            self._drop_cached_part(request)
            return None
        self.stop_waiting(request)
        self.tables.extend(request, blocks, places, fresh)
        request.num_computed = cached * self.page_size
        self.scores.inherit(request)
        if request.num_cached is None:
            request.num_cached = request.num_computed
        return fresh

    def _drop_cached_part(self, request: Request) -> None:
        if self.locks.of(request) is not None:
            self._windows.unread(self._windows.among(request.pages))
            self.locks.release(request)
        self.tables.clear(request)
        request.num_computed = 0

    def stop_waiting(self, request: Request) -> None:
        """For KV that comes from elsewhere."""
        if self.tiers is not None:
            self.tiers.stop_waiting(request)
        self.arriving.let_go(request)
