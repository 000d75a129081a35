"""Whether a worker has room for a request: pages and a slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from common.kv_groups import RequestPages

ONE_TOKEN_PAGES: Final = RequestPages()


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A worker's last report, and the requests sent since that the report does not cover."""

    pages: RequestPages = ONE_TOKEN_PAGES
    """Pages that a request takes."""
    max_running: int = 0
    """Requests that the worker computes concurrently; 0: unknown."""
    total_pages: int = 0
    """0: no report yet."""
    free_pages: int = 0
    """Free or evictable."""
    quarantined_pages: int = 0
    """Pages of failed handoffs: free again when no write can land in them."""
    running: int = 0
    """Requests that the worker computes."""
    starved: int = 0
    """Requests that wait at the worker for pages or for a slot."""
    incoming: int = 0
    """Handoffs with reserved pages."""
    queued_handoffs: int = 0
    """Handoffs that wait for pages."""
    queued_pages: int = 0
    """Pages that those wait for."""
    promised: int = 0
    """Requests that were sent, or are about to be, and are not in the report yet."""
    promised_pages: int = 0
    fresh_share: float = 1.0
    """Share of a prompt's pages that were not cached, averaged over recent reservations, in (0, 1]."""

    @property
    def usable_pages(self) -> int:
        return self.total_pages - self.quarantined_pages

    def fits(self, tokens: int) -> bool:
        """Whether the worker could compute a request of this size, if it computed no other.

        False only while pages that it needs are quarantined: the worker itself refuses what exceeds its pool.
        """
        return min(self.pages.of(tokens), self.total_pages) <= self.usable_pages

    def pages_for(self, tokens: int) -> int:
        """Pages for a request of this many tokens: those that are not cached, and one to grow into.

        At most all usable ones: a request that fills the pool alone must not wait for more.
        """
        pages = math.ceil(self.pages.of(tokens) * self.fresh_share) + 1
        return min(pages, self.usable_pages)

    def has_room(self, tokens: int) -> bool:
        """Whether the worker could compute a request of this size now; True before its first report."""
        if not self.total_pages:
            return True
        if self.starved or not self.fits(tokens):
            return False  # the engine admits the starved requests first
        active = self.running + self.incoming + self.queued_handoffs + self.promised
        if self.max_running and active >= self.max_running:
            return False
        # As in Engine.reserve, every request keeps a page to grow into; promised_pages include it.
        growth = self.running + self.incoming + self.queued_handoffs
        taken = self.queued_pages + self.promised_pages + growth
        return self.pages_for(tokens) + taken <= self.free_pages
