"""Sums over prompts as a sidecar of cached pages: a mean of all rows begins with a cached prefix.

A page owns the weighted sum over its own tokens, so the sum over any prefix of whole pages is that of their
rows, for chunks of any size, computed here or elsewhere.
"""

from __future__ import annotations

import numpy as np

from common.sidecars import SidecarKind
from engine.core.output import Output
from engine.core.plan import Chunk
from engine.core.read import PageSums, Pooled
from engine.core.request import Request
from engine.kv.cache.radix import RadixCache
from engine.kv.cache.sidecars import Sidecars
from engine.kv.manager.own_pages import OwnPages


class PromptSums:
    def __init__(self, sidecars: Sidecars, pages: OwnPages, cache: RadixCache) -> None:
        self._sidecars = sidecars
        self._pages = pages
        self._cache = cache
        sums = (kind for kind in sidecars.kinds if kind.of_page)
        self._kind: SidecarKind | None = next(sums, None)

    def wanted_by(self, request: Request) -> bool:
        """Whether pages keep what a request adds up."""
        kept = self._kind is not None and self._pages.group is not None and self._cache.enabled
        return kept and request.read is not None and request.read.needs_all_rows

    def look_up(self, request: Request) -> None:
        """Set how many tokens of a request have sums in the cache. O(tokens)."""
        assert self._kind is not None
        keys, root = request.keys(0, len(request.prompt)), self._cache.root(request.namespace)
        pages = self._pages.of_group(self._cache.known(keys, root).pages)
        request.num_summed = self._sidecars.num_complete(self._kind, pages) * self._pages.page_size

    def begin(self, request: Request) -> None:
        """A request continues after `num_computed` tokens, which are cached: take their sum."""
        request.pooled = None
        if request.num_computed and self.wanted_by(request):
            assert self._kind is not None
            blocks = request.num_computed // self._pages.page_size
            rows = self._sidecars.rows(self._kind, self._pages.of_group(request.pages)[:blocks])
            request.pooled = Pooled(request.num_computed, rows.sum(axis=0, dtype=np.float32).tobytes())

    def computed(self, chunk: Chunk, pooled: PageSums | Pooled) -> Output | None:
        """A chunk is computed: keep its sums. Returns the vector of its prompt, once that is complete."""
        request = chunk.request
        if not chunk.is_current:
            return None
        if isinstance(pooled, PageSums):
            self._keep(request, pooled)
            pooled = pooled.total
        if request.pooled is not None:
            pooled = pooled.plus(request.pooled)
        request.pooled = pooled
        if not chunk.ends_request:
            return None
        assert request.read is not None
        return pooled if self._kind is None else request.read.finished(pooled)

    def _keep(self, request: Request, sums: PageSums) -> None:
        assert self._kind is not None
        for first, end, row in sums.parts:
            block, size = first // self._pages.page_size, self._pages.page_size
            if (page := self._pages.own(request, block)) is not None:
                self._sidecars.add(self._kind, page, first - block * size, end - first, row)
