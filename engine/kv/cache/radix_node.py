"""Nodes of the radix cache, and the order in which those without users are evicted."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from itertools import count
from typing import TypeAlias

from common.block_hash import BlockHash
from engine.kv.cache.spared import NOTHING_SPARED, SparedBlocks

PageKey: TypeAlias = bytes
"""The keys of a block."""


class RadixNode:
    """An edge and the node it leads to."""

    __slots__ = (
        "blocks",
        "changes",
        "children",
        "depth",
        "keys",
        "last_used",
        "length",
        "locks",
        "pages",
        "parent",
        "queued",
    )

    def __init__(self, parent: RadixNode | None, keys: array[int], pages: list[int], depth: int) -> None:
        self.parent = parent
        self.keys = keys
        """Keys of the edge's positions."""
        self.pages = pages
        self.depth = depth
        """Blocks from the root to the end of this edge."""
        self.length = depth - (0 if parent is None else parent.depth)
        """Blocks of this edge."""
        self.blocks: list[BlockHash] = []
        """Hashes of the edge's blocks if the cache keeps a journal; otherwise empty."""
        self.children: dict[PageKey, RadixNode] = {}
        self.changes = 0
        """Grows whenever a match that ends at this node, or in an edge below it, may end elsewhere."""
        self.locks = 0
        self.last_used = 0
        self.queued = 0
        """Number of its entry in the eviction order; 0: it has none."""

    def path_blocks(self) -> list[BlockHash]:
        """Hashes of all blocks from the root to the end of this edge; empty if the cache keeps no journal."""
        edges: list[list[BlockHash]] = []
        node: RadixNode | None = self
        while node is not None:
            edges.append(node.blocks)
            node = node.parent
        return [block for edge in reversed(edges) for block in edge]

    def hashes(self, first: int) -> dict[int, BlockHash]:
        """Hashes by block number from `first`, perhaps from before it, up to the end of this edge. O(blocks
        of these edges).
        """
        found: dict[int, BlockHash] = {}
        node: RadixNode | None = self
        while node is not None and node.depth > first:
            found |= enumerate(node.blocks, node.depth - node.length)
            node = node.parent
        return found


class UnusedLeaves:
    """Leaves that no request uses, least recently used first, and retained ones after all others."""

    def __init__(self, spared: SparedBlocks | None) -> None:
        self._spared = NOTHING_SPARED if spared is None else spared
        self._serial = count(1)
        self._others: list[tuple[int, int, RadixNode]] = []
        """Heap by last use. Entries become stale when their leaf is used again."""
        self._retained: list[tuple[int, int, RadixNode]] = []
        """The same of leaves that were retained when it was their turn."""
        self._retained_at: dict[BlockHash, RadixNode] = {}
        """Retained leaves, by what was their last block."""
        if spared is not None:
            spared.on_ended.append(self._no_longer_retained)

    def offer(self, node: RadixNode) -> None:
        """Add a node if it has become an unused leaf."""
        if not node.queued and is_unused(node):
            self._queue(node)

    def pop(self) -> tuple[RadixNode, int] | None:
        """Remove the next leaf; it, and how many of its blocks to keep because they are retained.

        O(log leaves) for each leaf that is found to be retained or in use.
        """
        while self._others or self._retained:
            is_last_resort = not self._others
            entry = heapq.heappop(self._retained if is_last_resort else self._others)
            last_used, number, leaf = entry
            if leaf.queued != number:
                continue
            if is_unused(leaf) and leaf.last_used == last_used:
                keep = 0 if is_last_resort else self._num_retained(leaf)
                if keep == leaf.length:
                    heapq.heappush(self._retained, entry)
                    self._retained_at[leaf.blocks[-1]] = leaf
                    continue
                leaf.queued = 0
                if is_last_resort:
                    self._retained_at.pop(leaf.blocks[-1], None)
                return leaf, keep
            leaf.queued = 0
            self.offer(leaf)
        return None

    def _queue(self, leaf: RadixNode) -> None:
        leaf.queued = next(self._serial)
        heapq.heappush(self._others, (leaf.last_used, leaf.queued, leaf))

    def _no_longer_retained(self, block: BlockHash) -> None:
        """O(log leaves)."""
        leaf = self._retained_at.pop(block, None)
        if leaf is not None and leaf.queued:
            self._queue(leaf)  # its entry among the retained is void

    def _num_retained(self, leaf: RadixNode) -> int:
        """Blocks of an edge that are retained: the first ones, since prefixes are. O(log blocks)."""
        spared = self._spared
        if not spared or not leaf.blocks:
            return 0
        return bisect_left(leaf.blocks, True, key=lambda block: block not in spared)


def is_unused(node: RadixNode) -> bool:
    return not node.locks and not node.children and node.parent is not None


def shared_part(node: RadixNode | None) -> RadixNode | None:
    """The deepest node up from a locked one that has other readers; None if there is none."""
    while node is not None and node.locks == 1:
        node = node.parent
    return node
