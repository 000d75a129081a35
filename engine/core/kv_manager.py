"""Pages for requests: the pool's accounts and the radix cache, kept in step.

A request's block table mixes two kinds of pages: those that the radix cache owns (the request holds a lock on
the deepest node it uses) and those the request holds alone. Which is which is asked of the pool, not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine.core.request import Request
from engine.errors import PageLeak
from engine.kv_cache.pages import PageCounts, PagePool, PageState
from engine.kv_cache.radix import RadixCache, RadixNode

__all__ = ["KVManager", "Reservation"]


@dataclass(slots=True, eq=False)
class Reservation:
    """Pages set aside for KV that another worker computes."""

    request: Request
    first_token: int
    """The first token whose KV must come; earlier ones are cached here. A multiple of the page size."""
    incoming: list[int]
    """Pages that the peer writes, in order from `first_token` on."""

    @property
    def handoff_id(self) -> int:
        return self.request.id

    @property
    def pages(self) -> list[int]:
        return self.request.pages


class KVManager:
    """Every method that takes pages either takes all it needs or none, and says so."""

    def __init__(self, num_pages: int, page_size: int, *, radix_cache: bool = True) -> None:
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.cache = RadixCache(page_size) if radix_cache else None
        self.reservations: dict[int, Reservation] = {}
        """By handoff: those that may still become requests."""
        self._quarantined: dict[int, Reservation] = {}
        """Given up, but a remote write may still land in their pages."""

    @property
    def active_reservations(self) -> int:
        """Handoffs that may still become running requests; those in quarantine never will."""
        return len(self.reservations)

    @property
    def num_available(self) -> int:
        """Pages that are free or could be at once."""
        return self.pool.num_free + (self.cache.num_evictable if self.cache else 0)

    def admit(self, request: Request, headroom: Callable[[int], int]) -> bool:
        """Give a waiting request pages for all its tokens, its cached prefix first.

        False, and nothing changed, unless so many pages stay available besides as `headroom` says, given how
        many of its pages the request would hold alone. The more these are, the less it may say.
        """
        return self._begin(request, headroom, PageState.HELD) is not None

    def pages_alone(self, request: Request) -> int:
        """Pages that become available when the request ends: its own, and cached ones with no other reader.

        O(nodes of the cache that only this request reads).
        """
        return len(request.pages) - _shared_part(request.locked).depth

    def is_second_reader(self, request: Request) -> bool:
        """Whether cached pages that one other request had to itself are now also read by this one."""
        shared = _shared_part(request.locked)
        return shared.depth > 0 and shared.locks == 2

    def catch_up(self, request: Request) -> None:
        """Take over what other requests have computed of this one's prompt since it was admitted."""
        if self.cache is None or request.locked is None:
            return
        at = request.locked.depth * self.page_size
        if at != request.num_computed:
            return  # its own last chunk is still being computed
        found = self.cache.match(request.tokens(at, request.num_tokens - 1), after=request.locked)
        if not found.pages:
            return
        first = at // self.page_size
        ours = request.pages[first : first + len(found.pages)]
        self.cache.lock(found.node)
        self.cache.unlock(request.locked)
        request.locked = found.node
        request.pages[first : first + len(found.pages)] = found.pages
        request.num_computed += len(found.pages) * self.page_size
        self.pool.give_back(ours, request.id)

    def grow(self, request: Request) -> bool:
        """Make sure that there is a page for the next token."""
        if request.num_computed < len(request.pages) * self.page_size:
            return True
        pages = self._take(1, request.id, PageState.HELD)
        if pages is None:
            return False
        request.pages += pages
        return True

    def store(self, request: Request, upto: int) -> None:
        """Tokens [0, upto) are computed: let other requests find the full pages among them."""
        if self.cache is None or request.locked is None:
            return
        first, end = request.locked.depth, upto // self.page_size
        if end <= first:
            return
        tokens = request.tokens(first * self.page_size, end * self.page_size)
        inserted = self.cache.insert(tokens, request.pages[first:end], after=request.locked)
        self.pool.to_cache(inserted.adopted, request.id)
        self.cache.lock(inserted.node)
        self.cache.unlock(request.locked)
        request.locked = inserted.node

    def release(self, request: Request, *, keep: bool = True) -> None:
        """Take all pages back. What was computed stays in the cache until evicted.

        keep=False: it is not to be trusted, and neither is what the cache has of it already.
        """
        if keep and request.pages:
            known = request.num_tokens - (1 if request.awaits_token else 0)
            self.store(request, min(request.num_computed, known))
        held = [page for page in request.pages if self.pool.state(page) is PageState.HELD]
        self.pool.give_back(held, request.id)
        self._drop_cached_part(request)
        if not keep:
            self.forget(request)

    def forget(self, request: Request) -> None:
        """What the cache has of a request without pages is not to be trusted. O(tokens).

        Found by its tokens, for the request may have left it there before that was known.
        """
        if self.cache is not None:
            last = self.cache.match(request.tokens(0, request.num_tokens)).node
            self.pool.from_cache(self.cache.forget(last))

    def reserve(self, request: Request, headroom: int, room: int = 0) -> Reservation | None:
        """Set pages aside for a request whose KV another worker will send; None if there are too few.

        `room`: tokens by which it may grow until then.
        """
        incoming = self._begin(request, lambda _: headroom, PageState.IN_FLIGHT, room)
        if incoming is None:
            return None
        reservation = Reservation(request, request.num_computed, incoming)
        self.reservations[request.id] = reservation
        return reservation

    def arrived(self, reservation: Reservation) -> None:
        """All KV is here and verified: the pages are the request's."""
        del self.reservations[reservation.handoff_id]
        self.pool.arrived(reservation.incoming, reservation.handoff_id, reservation.request.id)

    def quarantine(self, reservation: Reservation) -> None:
        """The handoff was given up, but its peer may still write: only `free_reservation` ends that."""
        self._quarantined[reservation.handoff_id] = self.reservations.pop(reservation.handoff_id)
        self.pool.quarantine(reservation.incoming, reservation.handoff_id)
        self._drop_cached_part(reservation.request)

    def free_reservation(self, reservation: Reservation) -> None:
        """No write can land any more."""
        owner = self._quarantined if reservation.handoff_id in self._quarantined else self.reservations
        del owner[reservation.handoff_id]
        if reservation.incoming:
            state = self.pool.state(reservation.incoming[0])
            self.pool.give_back(reservation.incoming, reservation.handoff_id, state)
        self._drop_cached_part(reservation.request)

    def check(self, owners: list[Request]) -> PageCounts:
        """Prove that every page has exactly one owner; `owners` are all requests that may have pages.

        Costs O(pages in the pool). Raises PageLeak.
        """
        counts = self.pool.recount()
        held = [page for r in owners for page in r.pages if self.pool.state(page) is PageState.HELD]
        cached = [page for node in self.cache.nodes() for page in node.pages] if self.cache else []
        lent = [*self.reservations.values(), *self._quarantined.values()]
        incoming = [page for reservation in lent for page in reservation.incoming]
        accounts = {
            "counters": (self.pool.counts(), counts),
            "held": (len(set(held)), len(held), counts.held),
            "cached": (len(set(cached)), len(cached), counts.cached),
            "reserved": (len(set(incoming)), len(incoming), counts.in_flight + counts.quarantined),
        }
        for name, values in accounts.items():
            if len(set(values)) != 1:
                raise PageLeak(f"pages {name} do not add up: {values}; {counts}")
        return counts

    def _begin(
        self, request: Request, headroom: Callable[[int], int], state: PageState, room: int = 0
    ) -> list[int] | None:
        """Match, lock, take the rest in `state`; returns the pages taken. All or nothing."""
        needed = -(-(request.num_tokens + room) // self.page_size)
        if headroom(needed) >= self.num_available:
            return None  # not even if it shares nothing, which spares the search
        cached: list[int] = []
        if self.cache is not None:
            # The last token is always computed: its logits are what the request is here for.
            found = self.cache.match(request.tokens(0, request.num_tokens - 1))
            self.cache.lock(found.node)
            request.locked, cached = found.node, found.pages
        count = needed - len(cached)
        fits = count + headroom(needed - _shared_part(request.locked).depth) <= self.num_available
        fresh = self._take(count, request.id, state) if fits else None
        if fresh is None:
            self._drop_cached_part(request)
            return None
        request.pages = cached + fresh
        request.num_computed = len(cached) * self.page_size
        if request.num_cached is None:
            request.num_cached = request.num_computed
        return fresh

    def _drop_cached_part(self, request: Request) -> None:
        if self.cache is not None and request.locked is not None:
            self.cache.unlock(request.locked)
        request.locked = None
        request.pages = []
        request.num_computed = 0

    def _take(self, count: int, owner: int, state: PageState) -> list[int] | None:
        short = count - self.pool.num_free
        if short > 0:
            if self.cache is None or short > self.cache.num_evictable:
                return None
            self.pool.from_cache(self.cache.evict(short))
        return self.pool.take(count, owner, state)


_NOTHING: Final = RadixNode(None, (), [], 0)


def _shared_part(node: RadixNode | None) -> RadixNode:
    """The deepest node up from a locked one that has other readers; of depth 0 if there is none."""
    while node is not None and node.locks == 1:
        node = node.parent
    return node or _NOTHING
