"""The prefix cache: radix trees over whole blocks of keys, most of which are tokens (see `common.origin`).

After SGLang's RadixAttention, with blocks instead of tokens as the alphabet: an edge holds one or more of
them, and a node's children are named by the keys of their first block. Each namespace has a tree of its own.
The trees own their pages. A request locks the deepest node that it uses, which protects that node and all
nodes above it from eviction.

A block has one page for each group of layers. A page of a group with a window is needed only by requests that
continue within the window: they are counted as its readers, and a page without readers may be evicted alone.
Then a prefix that ends within the window after it can no longer be used.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from common.block_hash import BlockHash, block_hashes
from common.kv_groups import NO_PAGE, ONE_GROUP, KVGroup
from common.origin import NO_NAMESPACE, Namespace
from common.token_array import token_array
from engine.kv.cache.journal import CacheChange, CacheJournal
from engine.kv.cache.radix_node import RadixNode, UnusedLeaves, is_unused
from engine.kv.cache.roots import Root, Roots
from engine.kv.cache.spared import SparedBlocks
from engine.kv.cache.window_pages import WindowPages

WHATEVER_IS_THERE: Final = 1 << 40
"""A request that continued at this position would need no pages of windows."""


@dataclass(frozen=True, slots=True)
class Match:
    node: RadixNode
    """The deepest node of the match; its depth is the number of blocks matched."""
    blocks: int
    """Blocks matched below the node that the search began at."""
    pages: list[int]
    """Their pages, of each block one for every group. Some of those may be missing (NO_PAGE) that a request
    which continues after the match does not need."""


@dataclass(frozen=True, slots=True)
class Insertion:
    node: RadixNode
    adopted: list[int]
    """Pages that the tree owns from now on. It already had the others, of which the caller keeps its
    copies."""


class RadixCache:
    """Bookkeeping of page numbers only.

    `match` and `insert` cost O(keys named); `lock` and `unlock` O(nodes above); `evict` O(log n) per node.
    """

    def __init__(
        self,
        page_size: int,
        groups: Sequence[KVGroup] = ONE_GROUP,
        *,
        enabled: bool = True,
        trimmed: Callable[[RadixNode], None] = lambda node: None,
        spared: SparedBlocks | None = None,
    ) -> None:
        """`enabled`: False: it adopts no page, so nothing is found. `trimmed`: called when the tree drops
        the last pages of a node, or all. `spared`: blocks that are evicted after all others, if the cache
        keeps a journal."""
        self.page_size = page_size
        self._stride = len(groups)
        self._num_full = sum(group.window is None for group in groups)
        self.enabled = enabled
        self.windows = WindowPages[RadixNode](page_size, groups)
        self._trimmed = trimmed
        self._roots = Roots(page_size)
        self.version = 0
        """Changes whenever the result of a match may change."""
        self.num_pages = 0
        self._evictable = 0
        """Evictable pages of groups without a window."""
        self._journal: CacheJournal | None = None
        self._clock = 0
        self._unused = UnusedLeaves(spared)

    @property
    def num_evictable(self) -> int:
        return self._evictable + self.windows.num_unread

    def keep_journal(self) -> None:
        """Enable `take_changes`. The cache must be empty. Costs a hash per page."""
        assert not self.num_pages, "pages that are cached already have no hashes"
        self._journal = CacheJournal()

    def take_changes(self) -> list[CacheChange]:
        """Pages stored and removed since the last call, in order; empty without a journal."""
        return [] if self._journal is None else self._journal.take()

    def root(self, namespace: Namespace = NO_NAMESPACE) -> RadixNode:
        """The node before the first block of every sequence of a namespace. It stays while it is locked, or
        blocks follow it."""
        return self._roots.of(namespace)

    def blocks(self) -> list[BlockHash]:
        """Hashes of all pages, parents before children; empty without a journal. O(pages)."""
        return [block for node in self.nodes() for block in node.blocks]

    def match(self, keys: Sequence[int], after: RadixNode, *, touch: bool = True, resume: int = 0) -> Match:
        """The longest cached prefix of `keys` in whole blocks, below node `after`, that can be continued.

        `resume`: the KV of tokens up to this position will arrive otherwise, so that windows which end before
        it are not needed.

        Splits an edge that matches in part, so that the result can be locked exactly. With touch=False (a
        query only) the tree is not changed, and `node` may be deeper than the match.
        """
        found = self.known(keys, after)
        if self.windows.used and found.pages:
            blocks = self.windows.usable(found.pages, after.depth, resume)
            found = self._first_blocks(found, after, blocks)
        return self._exact(found, after) if touch else found

    def known(self, keys: Sequence[int], after: RadixNode) -> Match:
        """The longest cached prefix below `after`, whatever pages of windows are missing; changes nothing.

        The node may be deeper than the match.
        """
        node, blocks = after, 0
        pages: list[int] = []
        sought = token_array(keys)
        size, start = self.page_size, 0
        while (child := node.children.get(sought[start : start + size].tobytes())) is not None:
            shared = self._shared_blocks(child, sought, start)
            pages += child.pages[: shared * self._stride]
            node, blocks = child, blocks + shared
            if shared < child.length:
                break
            start += shared * size
        return Match(node, blocks, pages)

    def usable(self, known: Match) -> int:
        """How many blocks of a match in the whole tree can be continued."""
        return self.windows.usable(known.pages, 0, 0)

    def unlocked(self, match: Match) -> int:
        """Blocks of a match in the whole tree that no request uses."""
        node = match.node
        while not node.locks and node.parent is not None:
            node = node.parent
        return max(0, match.blocks - node.depth)

    def _first_blocks(self, found: Match, top: RadixNode, blocks: int) -> Match:
        """The first `blocks` of what was found below `top`."""
        node, depth = found.node, top.depth + blocks
        while node is not top and node.depth - node.length >= depth:
            assert node.parent is not None
            node = node.parent
        return Match(node, blocks, found.pages[: blocks * self._stride])

    def _exact(self, found: Match, top: RadixNode) -> Match:
        """Split the edge in which a match below `top` ends, and mark it as used."""
        node, surplus = found.node, found.node.depth - top.depth - found.blocks
        if surplus:
            node = self._split(node, node.length - surplus)
        self._touch(node)
        return Match(node, found.blocks, found.pages)

    def insert(self, keys: Sequence[int], pages: Sequence[int], after: RadixNode) -> Insertion:
        """Insert `pages` with the KV of `keys`, which follow node `after`.

        `keys` fill the blocks of `pages` exactly. Of blocks that are already in the tree, only pages that it
        lacks are adopted.
        """
        if not self.enabled:
            return Insertion(after, [])
        found = self._exact(self.known(keys, after), after)
        filled = self._fill_in(found, after, pages)
        added = list(pages[found.blocks * self._stride :])
        if not added:
            return Insertion(found.node, filled)
        rest = token_array(keys)[found.blocks * self.page_size :]
        leaf = RadixNode(found.node, rest, added, found.node.depth + len(added) // self._stride)
        found.node.children[rest[: self.page_size].tobytes()] = leaf
        found.node.changes += 1
        self.version += 1
        if self._journal is not None:
            before = found.node.hash if isinstance(found.node, Root) else found.node.blocks[-1]
            leaf.blocks = block_hashes(rest, self.page_size, before)
            self._journal.stored(leaf.blocks)
        adopted = added.copy()
        if self.windows.used:
            adopted = [page for page in added if page != NO_PAGE]
            self.windows.added(self.windows.of(added), leaf)
        self.num_pages += len(adopted)
        self._evictable += leaf.length * self._num_full
        self._touch(leaf)
        self._unused.offer(leaf)
        return Insertion(leaf, filled + adopted)

    def _fill_in(self, found: Match, top: RadixNode, pages: Sequence[int]) -> list[int]:
        """Take from `pages` those of window groups that the tree lacks in what was found below `top`."""
        if not self.windows.used:
            return []
        filled: list[int] = []
        node, end = found.node, found.blocks * self._stride
        while node is not top:
            assert node.parent is not None
            begin = end - len(node.pages)
            missing = [i for i, page in enumerate(node.pages) if page == NO_PAGE != pages[begin + i]]
            for i in missing:
                node.pages[i] = pages[begin + i]
            fresh = [node.pages[i] for i in missing]
            self.windows.added(fresh, node)
            filled += fresh
            node, end = node.parent, begin
        self.num_pages += len(filled)
        self.version += bool(filled)
        return filled

    def lock(self, node: RadixNode) -> None:
        above: RadixNode | None = node
        while above is not None:
            if above.locks == 0:
                self._evictable -= above.length * self._num_full
            above.locks += 1
            above = above.parent

    def unlock(self, node: RadixNode) -> None:
        self._touch(node)
        above: RadixNode | None = node
        while above is not None:
            above.locks -= 1
            if above.locks == 0:
                self._evictable += above.length * self._num_full
                self._unused.offer(above)
            above = above.parent

    def evict(self, wanted: int) -> list[int]:
        """Evict `wanted` pages or a few more, or as many as there are that no request uses.

        First pages of windows that requests have left behind, then leaves, least recently used first and
        retained ones last, from their ends, and last the other pages of windows before which no request needs
        them.
        """
        evicted = self._evict_windows(wanted, passed=True)
        while len(evicted) < wanted and (found := self._unused.pop()) is not None:
            leaf, keep = found
            keep = max(keep, leaf.length - -(-(wanted - len(evicted)) // self._stride))
            evicted += self._trim(leaf, keep)
        evicted += self._evict_windows(wanted - len(evicted), passed=False)
        self.num_pages -= len(evicted)
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
                dropped += self._drop(below.pages)
                self._trimmed(below)
                self._report_removed(below.blocks)
                below.parent = None  # eviction skips it
            node.children.clear()
            node.changes += 1
        while node.parent is not None and not node.locks and not node.children:
            parent = node.parent
            dropped += self._trim(node, keep=0)
            node = parent
        self.num_pages -= len(dropped)
        return dropped

    def drop_blocks(self, blocks: Collection[BlockHash]) -> list[int]:
        """Drop these blocks as far as no request uses them and no other block follows them; returns the
        pages. O(nodes). The cache must keep a journal."""
        dropped: list[int] = []
        for node in list(self.nodes()):
            while is_unused(node) and node.blocks[-1] in blocks:
                parent = node.parent
                assert parent is not None
                keep = next((i for i in range(node.length, 0, -1) if node.blocks[i - 1] not in blocks), 0)
                dropped += self._trim(node, keep)
                if not keep:
                    node = parent
        self.num_pages -= len(dropped)
        return dropped

    def nodes(self) -> Iterator[RadixNode]:
        return self._below(*self._roots)

    def _below(self, *nodes: RadixNode) -> Iterator[RadixNode]:
        stack = [child for node in nodes for child in node.children.values()]
        while stack:
            below = stack.pop()
            yield below
            stack += below.children.values()

    def _evict_windows(self, wanted: int, *, passed: bool) -> list[int]:
        evicted: list[int] = []
        while len(evicted) < wanted and (found := self.windows.pop(passed=passed)) is not None:
            page, node = found
            node.pages[node.pages.index(page)] = NO_PAGE
            node.changes += 1
            self.version += 1
            evicted.append(page)
        return evicted

    def _drop(self, pages: list[int]) -> list[int]:
        """Remove evicted blocks, which have no locks; returns their pages without holes."""
        self._evictable -= len(pages) // self._stride * self._num_full
        if not self.windows.used:
            return pages
        self.windows.dropped(self.windows.of(pages))
        return [page for page in pages if page != NO_PAGE]

    def _trim(self, leaf: RadixNode, keep: int) -> list[int]:
        """Keep the first `keep` blocks of a leaf; returns the pages of the others."""
        self.version += 1
        self._trimmed(leaf)
        parent = leaf.parent
        assert parent is not None
        leaf.changes += 1
        parent.changes += 1
        self._report_removed(leaf.blocks[keep:])
        removed = self._drop(leaf.pages[keep * self._stride :])
        if keep:
            del leaf.blocks[keep:]
            leaf.depth -= leaf.length - keep
            leaf.length = keep
            leaf.keys = leaf.keys[: keep * self.page_size]
            del leaf.pages[keep * self._stride :]
            self._unused.offer(leaf)
            return removed
        del parent.children[leaf.keys[: self.page_size].tobytes()]
        leaf.parent = None
        self._unused.offer(parent)
        return removed

    def _report_removed(self, blocks: Sequence[BlockHash]) -> None:
        if self._journal is not None:
            self._journal.removed(blocks)

    def _touch(self, node: RadixNode) -> None:
        """Mark the path to `node` as used now, so that a parent is never older than its children."""
        self._clock += 1
        above: RadixNode | None = node
        while above is not None:
            above.last_used = self._clock
            above = above.parent

    def _shared_blocks(self, child: RadixNode, keys: array[int], start: int) -> int:
        """Number of whole blocks that `child` shares with keys[start:]; the first one is known to match."""
        edge, size = child.keys, self.page_size
        if keys[start : start + len(edge)] == edge:
            return child.length
        shared = 1
        page = slice(size, 2 * size)
        while keys[start + page.start : start + page.stop] == edge[page]:
            shared += 1
            page = slice(page.stop, page.stop + size)
        return shared

    def _split(self, node: RadixNode, keep: int) -> RadixNode:
        """Split an edge after `keep` blocks; returns the new upper node.

        The old object becomes the lower node, since requests refer to it as the deepest node that they use.
        """
        self.version += 1
        size, parent = self.page_size, node.parent
        assert parent is not None
        cut = keep * self._stride
        upper = RadixNode(parent, node.keys[: keep * size], node.pages[:cut], parent.depth + keep)
        upper.locks, upper.last_used = node.locks, node.last_used
        upper.blocks, node.blocks = node.blocks[:keep], node.blocks[keep:]
        upper.children[node.keys[keep * size : (keep + 1) * size].tobytes()] = node
        parent.children[upper.keys[:size].tobytes()] = upper
        parent.changes += 1
        node.parent, node.keys, node.pages = upper, node.keys[keep * size :], node.pages[cut:]
        node.length -= keep
        self.windows.moved(self.windows.of(upper.pages), upper)
        return upper
