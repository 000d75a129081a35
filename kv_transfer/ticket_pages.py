"""Which page of which block each page of a ticket is: block by block, groups in order, without those passed.

A page is passed if a window has left it behind: no token that the receiver computes sees it.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.kv_groups import KVGroup, kept_places
from kv_transfer.integrity.digest import PageDigester
from kv_transfer.layout import KVLayout


class TicketPages:
    """The receiver knows `num_tokens` tokens, and computes the last of them or a later one next."""

    def __init__(self, layout: KVLayout, first_token: int, num_tokens: int) -> None:
        self._groups = layout.groups
        self._page_size = layout.page_size
        self._position = num_tokens - 1
        self.first_block = first_token // layout.page_size
        self._passed = [max(0, block - self.first_block) for block in _first_blocks(layout, self._position)]
        """For each group: blocks from the first one on that have fallen out of its window."""

    def places(self, blocks: range) -> Sequence[int]:
        """Places in a request's block table, which has all groups, of the ticket's pages of `blocks`."""
        return kept_places(self._groups, self._page_size, self._position, blocks)

    def before(self, block: int) -> int:
        """How many of the ticket's pages are of blocks before this one."""
        blocks = max(0, block - self.first_block)
        return len(self._groups) * blocks - sum(min(blocks, passed) for passed in self._passed)

    def end(self, num_pages: int) -> int:
        """The block after the last one that `num_pages` pages hold as a whole."""
        return self.first_block + (num_pages + sum(self._passed)) // len(self._groups)


def unneeded(layout: KVLayout, place: int, position: int) -> bool:
    """Whether a request that continues at `position` does without the page at this place of its table."""
    block, group = divmod(place, len(layout.groups))
    return block < _first_block(layout, layout.groups[group], position - 1)


def digest_blocks(
    digester: PageDigester, layout: KVLayout, pages: Sequence[int], tail_tokens: int
) -> list[int]:
    """Digests of pages of whole blocks, the last of which has `tail_tokens` valid tokens in every group."""
    last = len(layout.groups)
    if last == 1 or tail_tokens == layout.page_size:
        return digester.digest(pages, tail_tokens)
    full = digester.digest(pages[:-last], layout.page_size) if pages[:-last] else []
    tails = enumerate(pages[-last:])
    return full + [digest for group, page in tails for digest in digester.digest([page], tail_tokens, group)]


def _first_blocks(layout: KVLayout, position: int) -> list[int]:
    return [_first_block(layout, group, position) for group in layout.groups]


def _first_block(layout: KVLayout, group: KVGroup, position: int) -> int:
    return group.first_needed(position) // layout.page_size
