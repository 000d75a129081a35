"""Cached prefixes that come from another worker's cache, and those that go to one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.kv_groups import NO_PAGE, kept_places
from engine.core.request import Request
from engine.kv.cache.page_needs import PageNeeds
from engine.kv.cache.radix import Match, RadixCache
from engine.kv.manager.arriving_prefixes import ArrivingPrefix, ArrivingPrefixes
from engine.kv.manager.missing_pages import MissingPages
from engine.kv.manager.prefix_holds import Hold, PrefixHolds
from engine.kv.manager.state_slots import StateSlots


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A cached prefix that a sender reads."""

    hold: Hold
    num_tokens: int
    pages: tuple[int, ...]
    """The block table; NO_PAGE where the receiver needs no page of a window."""


class PeerPrefixes:
    """A receiver asks for a prefix of a length. It gets all of it, or of a model without windows a part.

    Pages of windows are those that reach back from the prefix's last token, as in a handoff: the receiver
    says which it can still need. Of a recurrent state there are only checkpoints, so the sender says how far
    the one goes that it sends.
    """

    def __init__(
        self,
        needs: PageNeeds,
        cache: RadixCache,
        states: StateSlots,
        arriving: ArrivingPrefixes,
        holds: PrefixHolds,
        *,
        cached_tokens: Callable[[Request], int],
        num_available: Callable[[], int],
    ) -> None:
        self._needs = needs
        self._cache = cache
        self._states = states
        self._arriving = arriving
        self._holds = holds
        self._cached_tokens = cached_tokens
        self._num_available = num_available

    # ------------------------------------------------------------------------------ the receiver

    def expect(self, request: Request, num_tokens: int, headroom: int, owner: int) -> ArrivingPrefix | None:
        """Set pages aside for KV of the first `num_tokens` tokens of a new request, after what is cached.

        None if all of it is cached, or if the pool has no room for the whole request beside `headroom` pages.
        """
        size, needs = self._needs.page_size, self._needs
        depth = self._cached_tokens(request) // size
        end = min(num_tokens, request.num_sought) // size
        lacking = needs.pages(needs.blocks(request.num_tokens) - depth)
        if end <= depth or lacking + headroom > self._num_available():
            return None
        position = end * size - 1
        # A checkpoint may lie before the last block that is cached here.
        first = depth if self._states.used else self._first_lacking(request, end, position)
        if first >= end:
            return None
        places = kept_places(needs.groups, size, position, range(first, end))
        what = MissingPages(first, end, places, state=self._states.used)
        return self._arriving.begin(request, what, position, owner)

    def arrived(self, prefix: ArrivingPrefix, num_tokens: int) -> None:
        """`num_tokens` tokens of an expected prefix are here and verified: keep them until it is admitted."""
        end, rest = divmod(num_tokens, self._needs.page_size)
        node = self._arriving.arrived(prefix, end, with_state=not rest)
        self._arriving.keep(prefix, node)

    def _first_lacking(self, request: Request, end: int, position: int) -> int:
        """The first block of which a page is lacking that a request needs that continues at `position`."""
        needs = self._needs
        root = self._cache.root(request.namespace)
        known = self._cache.known(request.keys(0, end * needs.page_size), root)
        kept = kept_places(needs.groups, needs.page_size, position, range(known.blocks))
        holes = (place // needs.stride for place in kept if known.pages[place] == NO_PAGE)
        return next(holes, known.blocks)

    # ------------------------------------------------------------------------------ the sender

    def share(self, request: Request, first_token: int, num_tokens: int) -> SharedPrefix | None:
        """Keep what is cached of tokens [first_token, num_tokens) for a sender; None: nothing can be sent.

        `request` stands for the tokens and their origin, and is never submitted.
        """
        size, root = self._needs.page_size, self._cache.root(request.namespace)
        found = self._states.usable(self._cache.match(request.keys(0, num_tokens), root))
        if found.blocks <= first_token // size or not self._reaches_back(found, first_token, num_tokens):
            return None
        end = found.blocks * size
        pages = self._needs.without_passed(found.pages, 0, end)
        return SharedPrefix(self._holds.hold(found.node, end - 1), end, tuple(pages))

    def _reaches_back(self, found: Match, first_token: int, num_tokens: int) -> bool:
        """Whether windows have all pages that the receiver has set aside."""
        size, needs = self._needs.page_size, self._needs
        if not needs.windowed:
            return True
        if found.blocks < num_tokens // size:
            return False
        blocks = range(first_token // size, found.blocks)
        places = kept_places(needs.groups, size, num_tokens - 1, blocks)
        return all(found.pages[place] != NO_PAGE for place in places)

    def shared(self, prefix: SharedPrefix) -> None:
        """The sender no longer reads it."""
        self._holds.release(prefix.hold)
