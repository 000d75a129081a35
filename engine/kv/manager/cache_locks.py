"""Which node of the radix cache each request has locked, and which part of its path others read too."""

from __future__ import annotations

from engine.core.request import Request, RequestId
from engine.kv.cache.radix import RadixCache
from engine.kv.cache.radix_node import RadixNode, shared_part


class CacheLocks:
    """The deepest node whose pages a request uses is locked against eviction, and with it the path to it."""

    def __init__(self, cache: RadixCache) -> None:
        self._cache = cache
        self._nodes: dict[RequestId, RadixNode] = {}

    def of(self, request: Request) -> RadixNode | None:
        """The node that the request has locked; None if it has no pages."""
        return self._nodes.get(request.id)

    def move(self, request: Request, node: RadixNode) -> None:
        """`node` is now the deepest one whose pages the request uses."""
        self._cache.lock(node)
        before, self._nodes[request.id] = self._nodes.get(request.id), node
        if before is not None:
            self._cache.unlock(before)

    def release(self, request: Request) -> None:
        self._cache.unlock(self._nodes.pop(request.id))

    def shared_blocks(self, request: Request) -> int:
        """Cached blocks of the request that others read too. O(nodes that it alone reads)."""
        return shared.depth if (shared := shared_part(self.of(request))) is not None else 0

    def is_second_reader(self, request: Request) -> bool:
        """Whether cached pages that one other request had to itself are now also read by this one."""
        shared = shared_part(self.of(request))
        return shared is not None and shared.depth > 0 and shared.locks == 2
