"""Orders waiting requests by their cached prefixes, without searching the cache again in every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from engine.core.request import Request
from engine.kv.cache.radix import RadixCache
from engine.kv.cache.radix_node import PageKey, RadixNode

_WINDOW: Final = 128
"""Number of requests that are ranked; later ones keep their order. SGLang ranks none if more wait."""
_SEARCHES: Final = 8
"""Most searches from the root per step, each O(prompt). Other requests keep their rank."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Lookup:
    """Where a request's prefix ends in the tree: at `node`, or `partial` pages into the edge to `child`."""

    node: RadixNode
    changes: int
    """Change count of `node` when this was last known to hold."""
    depth: int
    """Depth of `node` at the lookup; eviction may have trimmed it since."""
    key: PageKey
    """Keys of the page that follows `node`."""
    child: RadixNode | None
    length: int
    """Pages of the edge to `child`."""
    partial: int

    @property
    def pages(self) -> int:
        return self.depth + self.partial

    @property
    def deepest(self) -> RadixNode:
        return self.child if self.partial and self.child is not None else self.node


class PrefixRanker:
    """Remembers where each request's prefix ends. Checking that nothing changed there costs O(1)."""

    window: Final = _WINDOW

    def __init__(self, cache: RadixCache, *, depth_first: bool) -> None:
        self._cache = cache
        self._rank = self._depth_first if depth_first else self._longest_first
        self._lookups: dict[int, _Lookup] = {}
        """Lookups by request number."""
        self._version = -1

    def forget(self, request: Request) -> None:
        self._lookups.pop(request.scheduling.number, None)

    def order(self, items: Sequence[_T], request_of: Callable[[_T], Request]) -> list[_T]:
        """`items` in order of admission; ties keep their order."""
        requests = list(map(request_of, items))
        self._look_up(requests, changed=self._version != self._cache.version)
        ranks = self._rank(requests)
        return [items[index] for index in sorted(range(len(items)), key=ranks.__getitem__)]

    def _look_up(self, requests: Sequence[Request], *, changed: bool) -> None:
        lookups = self._lookups
        searches = _SEARCHES
        for request in requests:
            known = lookups.get(request.scheduling.number)
            if known is not None and not changed:
                continue
            start = root = self._cache.root(request.namespace)
            if known is not None:
                node = known.node
                if node.changes == known.changes and (node.parent is not None or node is root):
                    continue
                if node.depth == known.depth and (node.parent is not None or node is root):
                    child = node.children.get(known.key)
                    if child is known.child and (child is None or child.length == known.length):
                        known.changes = node.changes
                        continue
                    start = node
            if start is not root or searches:
                searches -= start is root
                lookups[request.scheduling.number] = self._search(request, start)
        if searches:
            self._version = self._cache.version

    def _search(self, request: Request, start: RadixNode) -> _Lookup:
        size = self._cache.page_size
        rest = request.keys(start.depth * size, request.num_reusable)
        found = self._cache.match(rest, start, touch=False)
        node, pages = found.node, start.depth + found.blocks
        if node.depth > pages:
            assert node.parent is not None
            node = node.parent
        at = (node.depth - start.depth) * size
        key = rest[at : at + size].tobytes()
        child = node.children.get(key)
        length = child.length if child else 0
        return _Lookup(node, node.changes, node.depth, key, child, length, pages - node.depth)

    def _longest_first(self, requests: Sequence[Request]) -> list[int]:
        known = [self._lookups.get(request.scheduling.number) for request in requests]
        return [-lookup.pages if lookup is not None else 0 for lookup in known]

    def _depth_first(self, requests: Sequence[Request]) -> list[int]:
        """Depth first, subtrees with the most waiting requests first (SGLang's dfs-weight); among equal ones
        that of the first request."""
        known = [self._lookups.get(request.scheduling.number) for request in requests]
        nodes = [
            lookup.deepest if lookup is not None else self._cache.root(request.namespace)
            for request, lookup in zip(requests, known, strict=True)
        ]
        requests_at = Counter(nodes)
        paths = {node: _path(node) for node in requests_at}
        weights: Counter[RadixNode] = Counter()
        for node, path in paths.items():
            for at in path:
                weights[at] += requests_at[node]
        found = {node: number for number, node in enumerate(weights)}  # in the order of the requests
        last = (1, 0)  # a node's own requests are ordered after those of its children
        keys = {node: [*((-weights[at], found[at]) for at in path), last] for node, path in paths.items()}
        ranks = {node: rank for rank, node in enumerate(sorted(keys, key=keys.__getitem__))}
        return [ranks[node] for node in nodes]


def _path(node: RadixNode) -> list[RadixNode]:
    """From the root down to `node`."""
    path: list[RadixNode] = []
    at: RadixNode | None = node
    while at is not None:
        path.append(at)
        at = at.parent
    return path[::-1]
