"""Pages that are being computed now, by their keys, so that other requests do not compute them again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

from engine.core.request import Request
from engine.kv.cache.radix_node import RadixNode

_PageKey: TypeAlias = tuple[int, bytes]
"""A chunk's offset in its prompt, and the keys of its first page."""


class PrefixesInFlight:
    """Chunks by their first page. Calls cost O(tokens of a page); `shared` also compares prefixes."""

    def __init__(self, page_size: int, node_of: Callable[[Request], RadixNode | None]) -> None:
        """`node_of`: see `CacheLocks.of`."""
        self._page_size = page_size
        self._node_of = node_of
        self._requests: defaultdict[_PageKey, list[Request]] = defaultdict(list)
        """Nearly always one per key; several differ in the keys before the page, or in their namespace."""

    def __bool__(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request, start: int) -> None:
        """`request` has a chunk at `start`. A chunk that ends within its first page cannot be shared."""
        if (key := self._page_key(request, start)) is not None:
            self._requests[key].append(request)

    def discard(self, request: Request, start: int) -> None:
        key = self._page_key(request, start)
        if key is None or (requests := self._requests.get(key)) is None:
            return
        if request in requests:
            requests.remove(request)
        if not requests:
            del self._requests[key]

    def shared(self, request: Request, start: int) -> bool:
        """Whether a chunk of another request computes the page at `start` of `request`."""
        key = self._page_key(request, start)
        if key is None:
            return False
        return any(self._same_prefix(r, request, start) for r in self._requests.get(key, ()))

    def _page_key(self, request: Request, start: int) -> _PageKey | None:
        if start + self._page_size > request.num_tokens:
            return None
        return start, request.keys(start, start + self._page_size).tobytes()

    def _same_prefix(self, first: Request, second: Request, start: int) -> bool:
        """Whether both have the same keys before `start`, in one namespace.

        The nodes in the prefix cache decide up to their depth; only keys of what was computed after them are
        compared. The roots of two namespaces differ.
        A request without a node has ended or was preempted: its pages are in the cache, or gone.
        """
        upper, lower = self._node_of(first), self._node_of(second)
        if upper is None or lower is None:
            return False
        if upper.depth > lower.depth:
            upper, lower = lower, upper
        while lower.depth > upper.depth and lower.parent is not None:
            lower = lower.parent
        known = upper.depth * self._page_size
        return lower is upper and first.keys(known, start) == second.keys(known, start)
