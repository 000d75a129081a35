"""Cached pages of one kind, of KV or of states, and their copies down."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from common.block_key import PageKey


@dataclass(slots=True)
class Demotions:
    fresh: OrderedDict[PageKey, None] = field(default_factory=OrderedDict)
    """Cached without a copy, but to have one, oldest first."""
    copied: set[PageKey] = field(default_factory=set)
    """Cached, and on a tier too."""
    copying: set[int] = field(default_factory=set)
    """Pages that are being copied down and still cached."""
    leaving: set[int] = field(default_factory=set)
    """Pages that are being copied down, and were evicted since."""

    def evicted(self, key: PageKey, page: int) -> bool:
        """Call on eviction. Returns whether a copy still reads the page (LEAVING)."""
        self.fresh.pop(key, None)
        if page not in self.copying:
            return False
        self.copying.remove(page)
        self.leaving.add(page)
        return True

    def ended(self, page: int) -> bool:
        """The copy of a page has ended; whether the page was LEAVING."""
        if page in self.leaving:
            self.leaving.remove(page)
            return True
        self.copying.remove(page)
        return False
