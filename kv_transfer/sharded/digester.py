"""Digests of pages that are sharded over ranks: sums of the ranks' digests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kv_transfer.integrity.digest import PageDigester
from kv_transfer.integrity.sum64 import MASK
from kv_transfer.layout import KVLayout
from kv_transfer.sharded.wire import Digest, DigestState, RankDigests, RankSocket


class ShardedDigester:
    """Implements `PageDigester` on rank 0. All ranks compute their digests at the same time.

    Ranks that hold the same heads count once, but every copy is verified: if their digests differ, the result
    is inverted, so that it matches no page.
    """

    def __init__(self, own: PageDigester, links: Sequence[RankSocket], layout: KVLayout) -> None:
        """`own`: digester of rank 0's pool, by sum64; `layout`: of that pool."""
        self._own = own
        self._links = links
        ranks = range(1 + len(links))
        firsts = [replace(layout, tp_rank=rank).first_head for rank in ranks]
        self._holder = [firsts.index(first) for first in firsts]
        """For each rank, the lowest rank that holds the same heads."""

    def digest(self, pages: Sequence[int], tail_tokens: int, group: int = 0) -> list[int]:
        for link in self._links:
            link.send(Digest(tuple(pages), tail_tokens, group))
        own = tuple(self._own.digest(pages, tail_tokens, group))
        parts = [own, *(link.expect(RankDigests).digests for link in self._links)]
        return [self._joined(digests) for digests in zip(*parts, strict=True)]

    def digest_state(self, first: int) -> list[int]:
        """No two ranks hold the same heads of a state."""
        for link in self._links:
            link.send(DigestState(first))
        digests = self._own.digest_state(first)
        for link in self._links:
            digests += link.expect(RankDigests).digests
        return digests

    def _joined(self, digests: Sequence[int]) -> int:
        total = sum(digest for rank, digest in enumerate(digests) if self._holder[rank] == rank)
        agree = all(digests[holder] == digest for digest, holder in zip(digests, self._holder, strict=True))
        return (total if agree else ~total) & MASK
