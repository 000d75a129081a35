"""KV of prompts that comes into the pool instead of being computed: from a tier, or from another worker.

Its pages are set aside, and the cached prefix that they belong to stays locked meanwhile. What has arrived
and is verified goes to the radix cache, where the request finds it at its admission. It is kept until then,
unless a request before it needs the pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from common.kv_groups import NO_PAGE
from engine.core.request import Request
from engine.core.request_state import NO_SLOT
from engine.kv.cache.page_needs import PageNeeds
from engine.kv.cache.pages import PagePool, PageState
from engine.kv.cache.radix import WHATEVER_IS_THERE, Insertion, RadixCache
from engine.kv.cache.radix_node import RadixNode
from engine.kv.manager.missing_pages import MissingPages
from engine.kv.manager.prefix_holds import Hold, PrefixHolds
from engine.kv.manager.reservations import Reservation
from engine.kv.manager.state_slots import StateSlots

_LEAST_PATIENCE_S: Final = 0.5
_FIRST_PATIENCE_S: Final = 5.0

TakePages = Callable[[int, int, PageState], list[int] | None]
"""Count, owner and state to the pages taken; None if there are too few."""
Adopted = Callable[[Request, int, Sequence[int], Insertion], None]
"""Told of a request, a block, the table from that block on, and the pages of it that the cache owns now."""


def patience_s(num_tokens: int, prefill_rate: float) -> float:
    """Seconds to wait for the KV of tokens: as long as computing them would take, but not less than 0.5 s.

    `prefill_rate`: tokens a second; math.inf before it was measured.
    """
    if prefill_rate == math.inf:
        return _FIRST_PATIENCE_S
    return max(num_tokens / prefill_rate, _LEAST_PATIENCE_S)


@dataclass(frozen=True, slots=True, eq=False)
class ArrivingPrefix:
    """Pages for KV that arrives, and a slot for the state after it."""

    owner: int
    request: Request
    hold: Hold
    """As much of the prefix as is cached."""
    before: RadixNode
    """The end of block `first` - 1."""
    first: int
    end: int
    position: int
    """Where the request continues that waits for it, perhaps not for it alone."""
    places: Sequence[int]
    """Places of the pages in the request's block table."""
    pages: list[int]
    slot: int


class ArrivingPrefixes:
    def __init__(
        self,
        pool: PagePool,
        cache: RadixCache,
        holds: PrefixHolds,
        states: StateSlots,
        needs: PageNeeds,
        take: TakePages,
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._holds = holds
        self._states = states
        self._needs = needs
        self._stride = needs.stride
        self._take = take
        self.on_adopted: Adopted = lambda request, first, table, inserted: None
        self._live: set[ArrivingPrefix] = set()
        self._kept: dict[int, Hold] = {}
        """For requests that wait for admission, by request id."""

    @property
    def pages(self) -> list[int]:
        """All that are IN_FLIGHT or QUARANTINED here."""
        return [page for prefix in self._live for page in prefix.pages]

    @property
    def slots(self) -> list[int]:
        return [prefix.slot for prefix in self._live if prefix.slot != NO_SLOT]

    def begin(self, request: Request, what: MissingPages, position: int, owner: int) -> ArrivingPrefix | None:
        """Set pages aside for what is lacking of a request's prefix; None if there are too few.

        `position`: where the request is to continue. `owner`: of the pages until they have arrived.
        """
        size = self._cache.page_size
        keys, root = request.keys(0, what.end * size), self._cache.root(request.namespace)
        before = self._cache.match(keys[: what.first * size], root, resume=WHATEVER_IS_THERE).node
        known = self._cache.match(keys[what.first * size :], before, resume=WHATEVER_IS_THERE).node
        assert before.depth == what.first, "it begins after what is cached"
        hold = self._holds.hold(known, position)
        slot = NO_SLOT
        if what.state:
            slot = self._states.take_for_checkpoint(owner)
        pages = None
        if not what.state or slot != NO_SLOT:
            pages = self._take(len(what.places), owner, PageState.IN_FLIGHT)
        if pages is None:
            self._give_back_slot(slot, owner)
            self._holds.release(hold)
            return None
        prefix = ArrivingPrefix(
            owner, request, hold, before, what.first, what.end, position, what.places, pages, slot
        )
        self._live.add(prefix)
        return prefix

    def arrived(self, prefix: ArrivingPrefix, end: int, *, with_state: bool) -> RadixNode:
        """The pages of blocks before `end` are verified; no write to any page is still under way.

        `with_state`: so is the state after block `end` - 1. Returns the end of what is cached now.
        """
        first, stride, owner = prefix.first, self._stride, prefix.owner
        with_state = with_state and first <= end
        end = max(first, end)
        table = [NO_PAGE] * ((end - first) * stride)
        count = 0
        for place, page in zip(prefix.places, prefix.pages, strict=True):
            if place < end * stride:
                table[place - first * stride] = page
                count += 1
        self._pool.give_back(prefix.pages[count:], owner, PageState.IN_FLIGHT)
        node = self.insert(prefix.request, prefix.before, table, owner)
        if prefix.slot != NO_SLOT:
            if with_state:
                self._states.arrived(prefix.request, node, prefix.slot, owner)
            else:
                self._give_back_slot(prefix.slot, owner)
        self._end(prefix)
        return node

    def insert(self, request: Request, before: RadixNode, table: list[int], owner: int) -> RadixNode:
        """The cache takes those pages of `table` that it lacks, and the others are free.

        `table`: of a request's blocks after `before`; its pages are verified, and no write is under way.
        Returns the end of what is cached now.
        """
        size, first = self._cache.page_size, before.depth
        verified = [page for page in table if page != NO_PAGE]
        if verified:
            self._pool.arrived(verified, owner, owner, self._pool.state(verified[0]))
        keys = request.keys(first * size, (first + len(table) // self._stride) * size)
        inserted = self._cache.insert(keys, table, before)
        self._pool.to_cache(inserted.adopted, owner)
        adopted = set(inserted.adopted)
        self._pool.give_back([page for page in verified if page not in adopted], owner)
        self.on_adopted(request, first, table, inserted)
        return inserted.node

    def keep_verified(self, reservation: Reservation, verified: int) -> int:
        """Insert the first `verified` pages of a failed handoff into the cache; returns how many it took.

        None if the prefix before them is not cached any more. Nor if they are of no use: without the state
        behind them, or without pages that a window has passed at the prompt's end and that it needs before.
        """
        if self._states.used or not self._cache.enabled:
            return 0
        request, first, size = reservation.request, reservation.first_token, self._cache.page_size
        node = self._cache.match(request.keys(0, first), self._cache.root(request.namespace)).node
        blocks = min(verified // self._stride, request.num_tokens // size - node.depth)
        if node.depth * size < first or blocks <= 0:
            return 0
        whole = range(node.depth, node.depth + blocks)
        if len(self._needs.places_of_arriving(whole, request.num_tokens - 1)) < blocks * self._stride:
            return 0
        table = reservation.incoming[: blocks * self._stride]
        self.insert(request, node, table, reservation.handoff_id)
        return len(table)

    def quarantine(self, prefix: ArrivingPrefix) -> None:
        """Nobody waits for it any more, but a peer may still write its pages."""
        self._pool.quarantine(prefix.pages, prefix.owner)
        if prefix.slot != NO_SLOT:
            self._states.pool.quarantine([prefix.slot], prefix.owner)

    def drained(self, prefix: ArrivingPrefix) -> None:
        """No write can land in the pages of a prefix in quarantine."""
        self._pool.give_back(prefix.pages, prefix.owner, PageState.QUARANTINED)
        self._give_back_slot(prefix.slot, prefix.owner, PageState.QUARANTINED)
        self._end(prefix)

    def keep(self, prefix: ArrivingPrefix, node: RadixNode) -> None:
        """Keep what has arrived until the request is admitted, or has ended."""
        self.let_go(prefix.request)
        self._kept[prefix.request.id] = self._holds.hold(node, prefix.position)

    def let_go(self, request: Request) -> None:
        """No-op if nothing is kept for it."""
        if (hold := self._kept.pop(request.id, None)) is not None:
            self._holds.release(hold)

    def unlock_arrived(self) -> bool:
        """A request lacks pages: release what has arrived for others. False: there is none."""
        kept, self._kept = self._kept, {}
        for hold in kept.values():
            self._holds.release(hold)
        return bool(kept)

    def _give_back_slot(self, slot: int, owner: int, state: PageState = PageState.IN_FLIGHT) -> None:
        if slot != NO_SLOT:
            self._states.pool.give_back([slot], owner, state)

    def _end(self, prefix: ArrivingPrefix) -> None:
        self._live.remove(prefix)
        self._holds.release(prefix.hold)
