"""Roots of the radix cache: one tree for each namespace, so that no page is found from another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from common.block_hash import root_hash
from common.origin import Namespace
from common.token_array import token_array
from engine.kv.cache.radix_node import RadixNode

_LEAST_SWEPT: Final = 64


class Root(RadixNode):
    __slots__ = ("hash",)

    def __init__(self, page_size: int, namespace: Namespace) -> None:
        super().__init__(None, token_array(()), [], 0)
        self.locks = 1  # never evicted
        self.hash = root_hash(page_size, namespace)
        """Hash before the one of the first block."""


class Roots:
    """`of` costs O(1) on average: unused roots are removed when the number of roots has doubled."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._roots: dict[Namespace, Root] = {}
        self._sweep_at = _LEAST_SWEPT

    def __iter__(self) -> Iterator[Root]:
        return iter(self._roots.values())

    def of(self, namespace: Namespace) -> Root:
        root = self._roots.get(namespace)
        if root is None:
            if len(self._roots) >= self._sweep_at:
                self._sweep()
            root = self._roots[namespace] = Root(self._page_size, namespace)
        return root

    def _sweep(self) -> None:
        """Remove roots without blocks that no request has locked."""
        self._roots = {name: root for name, root in self._roots.items() if root.children or root.locks > 1}
        self._sweep_at = max(_LEAST_SWEPT, 2 * len(self._roots))
