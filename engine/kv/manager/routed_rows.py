"""The experts that have computed each token, as a sidecar of its page: a prompt may reuse a cached prefix.

A row comes from the computation of its token's KV, so pages have both, and each page that a request reuses
has the rows of its tokens too.
"""

from __future__ import annotations

from typing import Final

from common.sidecars import ROUTED_EXPERTS, Rows, SidecarKind
from engine.core.output import Output
from engine.core.plan import Chunk
from engine.core.request import Request
from engine.core.routed_experts import RoutedExperts
from engine.kv.cache.radix import RadixCache
from engine.kv.cache.sidecars import Sidecars
from engine.kv.manager.own_pages import OwnPages
from engine.kv.manager.prompt_scores import PromptScores


class RoutedRows:
    def __init__(self, sidecars: Sidecars, pages: OwnPages, cache: RadixCache, scores: PromptScores) -> None:
        """`scores`: of the same pages."""
        self._sidecars: Final = sidecars
        self._pages: Final = pages
        self._cache: Final = cache
        self._scores: Final = scores
        kinds = (kind for kind in sidecars.kinds if kind.name == ROUTED_EXPERTS)
        self._kind: Final[SidecarKind | None] = next(kinds, None)
        self._found: list[tuple[Request, Output]] = []

    def take_found(self) -> list[tuple[Request, Output]]:
        """What `look_up` has found for requests since the last call, log-probabilities first."""
        found, self._found = self._found, []
        rows = [(request, rows) for request, rows in found if request.finish is None]
        return self._scores.take_found() + rows

    def look_up(self, request: Request) -> None:
        """Take from the cache what a request wants besides KV, log-probabilities of its prompt too.

        Its `num_routed` grows, and so does what it may reuse. O(tokens) if it wants anything.
        """
        self._scores.look_up(request)
        if not request.routed_experts or self._kind is None or self._pages.group is None:
            return
        if not self._cache.enabled or request.num_routed >= request.num_tokens - 1:
            return
        keys, root = request.keys(0, request.num_tokens), self._cache.root(request.namespace)
        pages = self._pages.of_group(self._cache.known(keys, root).pages)
        pages = pages[: self._sidecars.num_complete(self._kind, pages)]
        end = min(len(pages) * self._pages.page_size, request.num_tokens - 1)
        if end > request.num_routed:
            rows = self._sidecars.rows(self._kind, pages)[request.num_routed : end]
            self._found.append((request, RoutedExperts.of(request.num_routed, rows)))
            request.num_routed = end

    def computed(self, chunk: Chunk, rows: Rows) -> RoutedExperts | None:
        """A chunk has run: keep the rows of its first tokens. Returns those that its request still wants."""
        request, start, end = chunk.request, chunk.start, chunk.start + len(rows)
        if self._kind is not None and chunk.is_current:
            size = self._pages.page_size
            for block in range(start // size, -(-end // size)):
                page = self._pages.own(request, block)
                if page is not None:
                    first = max(start, block * size)
                    part = rows[first - start : (block + 1) * size - start]
                    self._sidecars.write(self._kind, page, first - block * size, part)
        known = request.num_routed
        if not request.routed_experts or request.finish is not None or end <= known:
            return None
        assert start <= known, "rows are computed in order"
        request.num_routed = end
        return RoutedExperts.of(known, rows[known - start :])
