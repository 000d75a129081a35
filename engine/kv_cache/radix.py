"""The prefix cache: a radix tree over whole pages of tokens.

After SGLang's RadixAttention, with pages instead of tokens as the alphabet: an edge holds one or more whole
pages, and a node's children are keyed by the tokens of their first page. The tree owns its pages. A request
locks the deepest node that it uses, which protects that node and all nodes above it from eviction.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from common.block_hash import BlockHash, block_hashes
from common.token_array import token_array
from engine.kv_cache.journal import CacheChange, CacheJournal

__all__ = ["Insertion", "Match", "RadixCache", "RadixNode"]

PageKey: TypeAlias = bytes
"""The tokens of a page."""


class RadixNode:
    """An edge and the node it leads to."""

    __slots__ = (
        "blocks",
        "changes",
        "children",
        "depth",
        "last_used",
        "locks",
        "pages",
        "parent",
        "queued",
        "tokens",
    )

    def __init__(self, parent: RadixNode | None, tokens: array[int], pages: list[int], depth: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.pages = pages
        self.depth = depth
        """Pages from the root to the end of this edge."""
        self.blocks: list[BlockHash] = []
        """One per page if the cache keeps a journal; otherwise empty."""
        self.children: dict[PageKey, RadixNode] = {}
        self.changes = 0
        """Grows whenever a match that ends at this node, or in an edge below it, may end elsewhere."""
        self.locks = 0
        self.last_used = 0
        self.queued = False
        """Whether the eviction heap has an entry for it; it never has two."""


@dataclass(frozen=True, slots=True)
class Match:
    node: RadixNode
    """The deepest node of the match; its depth is the number of pages matched."""
    pages: list[int]
    """The pages matched below the node that the search began at."""


@dataclass(frozen=True, slots=True)
class Insertion:
    node: RadixNode
    adopted: list[int]
    """Pages that the tree owns from now on. It already had the others, of which the caller keeps its
    copies."""


class RadixCache:
    """Bookkeeping of page numbers only.

    `match` and `insert` cost O(tokens named); `lock` and `unlock` O(nodes above); `evict` O(log n) per node.
    """

    def __init__(self, page_size: int, *, trimmed: Callable[[RadixNode], None] = lambda node: None) -> None:
        """`trimmed`: called when the tree drops the last pages of a node, or all."""
        self.page_size = page_size
        self._trimmed = trimmed
        self.root = RadixNode(None, token_array(()), [], 0)
        self.root.locks = 1  # never evicted
        self.version = 0
        """Changes whenever the result of a match may change."""
        self.num_pages = 0
        self.num_evictable = 0
        self._journal: CacheJournal | None = None
        self._clock = 0
        self._serial = count()
        self._unused: list[tuple[int, int, RadixNode]] = []
        """Heap of leaves by last use. Entries become stale when their leaf is used again; `evict` skips
        those."""

    def keep_journal(self) -> None:
        """Enable `take_changes`. The cache must be empty. Costs a hash per page."""
        assert not self.num_pages, "pages that are cached already have no hashes"
        self._journal = CacheJournal()

    def take_changes(self) -> list[CacheChange]:
        """Pages stored and removed since the last call, in order; empty without a journal."""
        return [] if self._journal is None else self._journal.take()

    def blocks(self) -> list[BlockHash]:
        """Hashes of all pages, parents before children; empty without a journal. O(pages)."""
        return [block for node in self.nodes() for block in node.blocks]

    def match(self, tokens: Sequence[int], after: RadixNode | None = None, *, touch: bool = True) -> Match:
        """The longest cached prefix of `tokens` in whole pages, below node `after`.

        Splits an edge that matches in part, so that the result can be locked exactly. With touch=False (a
        query only) the tree is not changed, and `node` may be deeper than `pages`.
        """
        node = after or self.root
        pages: list[int] = []
        sought = token_array(tokens)
        size, start = self.page_size, 0
        while (child := node.children.get(sought[start : start + size].tobytes())) is not None:
            shared = self._shared_pages(child, sought, start)
            pages += child.pages[:shared]
            if shared < len(child.pages):
                node = self._split(child, shared) if touch else child
                break
            node = child
            start += shared * size
        if touch:
            self._touch(node)
        return Match(node, pages)

    def insert(
        self, tokens: Sequence[int], pages: Sequence[int], after: RadixNode | None = None
    ) -> Insertion:
        """Insert `pages` with the KV of `tokens`, which follow node `after`.

        `tokens` fill `pages` exactly. Pages of tokens that are already in the tree are not adopted.
        """
        found = self.match(tokens, after)
        known = len(found.pages)
        adopted = list(pages[known:])
        if not adopted:
            return Insertion(found.node, adopted)
        rest = token_array(tokens)[known * self.page_size :]
        leaf = RadixNode(found.node, rest, adopted, found.node.depth + len(adopted))
        found.node.children[rest[: self.page_size].tobytes()] = leaf
        found.node.changes += 1
        self.version += 1
        if self._journal is not None:
            before = found.node.blocks[-1] if found.node.blocks else None
            leaf.blocks = block_hashes(rest, self.page_size, before)
            self._journal.stored(leaf.blocks)
        self.num_pages += len(adopted)
        self.num_evictable += len(adopted)
        self._touch(leaf)
        self._offer(leaf)
        return Insertion(leaf, list(adopted))

    def lock(self, node: RadixNode) -> None:
        above: RadixNode | None = node
        while above is not None:
            if above.locks == 0:
                self.num_evictable -= len(above.pages)
            above.locks += 1
            above = above.parent

    def unlock(self, node: RadixNode) -> None:
        self._touch(node)
        above: RadixNode | None = node
        while above is not None:
            above.locks -= 1
            if above.locks == 0:
                self.num_evictable += len(above.pages)
                self._offer(above)
            above = above.parent

    def evict(self, wanted: int) -> list[int]:
        """Evict up to `wanted` unlocked pages, least recently used first, from the leaves."""
        evicted: list[int] = []
        while len(evicted) < wanted and self._unused:
            last_used, _, leaf = heapq.heappop(self._unused)
            leaf.queued = False
            if leaf.locks or leaf.children or leaf.parent is None:
                continue
            if leaf.last_used != last_used:
                self._offer(leaf)
                continue
            keep = max(0, len(leaf.pages) - (wanted - len(evicted)))
            evicted += leaf.pages[keep:]
            self._trim(leaf, keep)
        self.num_pages -= len(evicted)
        self.num_evictable -= len(evicted)
        return evicted

    def forget(self, node: RadixNode) -> list[int]:
        """Drop the sequence that ends at `node`, because its KV is invalid; returns the pages.

        Also drops everything computed after it, and its ancestors as long as nothing else uses them. Nodes
        that a request reads are kept. O(nodes dropped).
        """
        self.version += 1
        dropped: list[int] = []
        if node.parent is not None and not node.locks:
            for below in self._below(node):
                dropped += below.pages
                self._trimmed(below)
                self._report_removed(below.blocks)
                below.parent = None  # eviction skips it
            node.children.clear()
            node.changes += 1
        while node.parent is not None and not node.locks and not node.children:
            parent = node.parent
            dropped += node.pages
            self._trim(node, keep=0)
            node = parent
        self.num_pages -= len(dropped)
        self.num_evictable -= len(dropped)
        return dropped

    def nodes(self) -> Iterator[RadixNode]:
        return self._below(self.root)

    def _below(self, node: RadixNode) -> Iterator[RadixNode]:
        stack = list(node.children.values())
        while stack:
            below = stack.pop()
            yield below
            stack += below.children.values()

    def _trim(self, leaf: RadixNode, keep: int) -> None:
        self.version += 1
        self._trimmed(leaf)
        parent = leaf.parent
        assert parent is not None
        leaf.changes += 1
        parent.changes += 1
        self._report_removed(leaf.blocks[keep:])
        if keep:
            del leaf.blocks[keep:]
            leaf.depth -= len(leaf.pages) - keep
            leaf.tokens = leaf.tokens[: keep * self.page_size]
            del leaf.pages[keep:]
            self._offer(leaf)
            return
        del parent.children[leaf.tokens[: self.page_size].tobytes()]
        leaf.parent = None
        self._offer(parent)

    def _report_removed(self, blocks: Sequence[BlockHash]) -> None:
        if self._journal is not None:
            self._journal.removed(blocks)

    def _offer(self, node: RadixNode) -> None:
        """Add a node that may have become an unused leaf to the eviction heap."""
        if not node.queued and not node.locks and not node.children and node.parent is not None:
            node.queued = True
            heapq.heappush(self._unused, (node.last_used, next(self._serial), node))

    def _touch(self, node: RadixNode) -> None:
        """Mark the path to `node` as used now, so that a parent is never older than its children."""
        self._clock += 1
        above: RadixNode | None = node
        while above is not None:
            above.last_used = self._clock
            above = above.parent

    def _shared_pages(self, child: RadixNode, tokens: array[int], start: int) -> int:
        """Number of whole pages that `child` shares with tokens[start:]; the first one is known to match."""
        edge, size = child.tokens, self.page_size
        if tokens[start : start + len(edge)] == edge:
            return len(child.pages)
        shared = 1
        page = slice(size, 2 * size)
        while tokens[start + page.start : start + page.stop] == edge[page]:
            shared += 1
            page = slice(page.stop, page.stop + size)
        return shared

    def _split(self, node: RadixNode, keep: int) -> RadixNode:
        """Split an edge after `keep` pages; returns the new upper node.

        The old object becomes the lower node, since requests refer to it as the deepest node that they use.
        """
        self.version += 1
        size, parent = self.page_size, node.parent
        assert parent is not None
        upper = RadixNode(
            parent, node.tokens[: keep * size], node.pages[:keep], node.depth - len(node.pages) + keep
        )
        upper.locks, upper.last_used = node.locks, node.last_used
        upper.blocks, node.blocks = node.blocks[:keep], node.blocks[keep:]
        upper.children[node.tokens[keep * size : (keep + 1) * size].tobytes()] = node
        parent.children[upper.tokens[:size].tobytes()] = upper
        parent.changes += 1
        node.parent, node.tokens, node.pages = upper, node.tokens[keep * size :], node.pages[keep:]
        return upper
