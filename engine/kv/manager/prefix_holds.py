"""Cached prefixes that are kept for something else than a running request.

A waiting request for which they arrived, an arrival after them, or a sender that reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.core.request_state import NO_SLOT
from engine.kv.cache.page_needs import PageNeeds
from engine.kv.cache.radix import RadixCache
from engine.kv.cache.radix_node import RadixNode
from engine.kv.manager.state_slots import StateSlots


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    node: RadixNode
    """The end of the prefix, locked."""
    windows: list[int]
    """Pages of groups with windows, read."""
    checkpoint: int
    """The state at the end, read; NO_SLOT: none."""


class PrefixHolds:
    def __init__(self, needs: PageNeeds, cache: RadixCache, states: StateSlots) -> None:
        self._needs = needs
        self._cache = cache
        self._states = states
        self._live: set[Hold] = set()

    def hold(self, node: RadixNode, position: int) -> Hold:
        """Keep a prefix, with what a request needs of it that continues at token `position`."""
        windows = self._windows(node, position)
        checkpoint = self._states.read(node)
        self._cache.lock(node)
        self._cache.windows.found(windows)
        hold = Hold(node, windows, checkpoint)
        self._live.add(hold)
        return hold

    def release(self, hold: Hold) -> None:
        self._live.remove(hold)
        self._cache.windows.unread(hold.windows)
        self._states.unread(hold.checkpoint)
        self._cache.unlock(hold.node)

    @property
    def num_reads(self) -> int:
        """Pages of windows, counted for each reader."""
        return sum(len(hold.windows) for hold in self._live)

    @property
    def checkpoints(self) -> Iterator[int]:
        """Slots that are read, for each reader."""
        return (hold.checkpoint for hold in self._live if hold.checkpoint != NO_SLOT)

    def _windows(self, node: RadixNode, position: int) -> list[int]:
        """Pages of windows before `node` that tokens from `position` on see. O(windows)."""
        windows, pages = self._cache.windows, list[int]()
        if not self._needs.windowed:
            return pages
        first = min(self._needs.first_block(w.group, position + 1) for w in self._needs.windowed)
        while node.parent is not None and node.depth > first:
            table = self._needs.without_passed(node.pages, node.depth - node.length, position + 1)
            pages += windows.of(table)
            node = node.parent
        return pages
