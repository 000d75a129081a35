"""Pages of the pool by kind of KV group. Counted on request only: no step needs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.kv_groups import NO_PAGE, KVGroup
from engine.core.request import Request
from engine.kv_cache.pages import PagePool, PageState
from engine.kv_cache.radix import RadixCache


@dataclass(frozen=True, slots=True)
class GroupPages:
    """Pages of all groups of one kind. A page that several requests share is cached, and counts once."""

    kind: str
    held: int
    """By requests alone."""
    cached: int
    """By the radix cache."""


def pages_by_kind(
    groups: Sequence[KVGroup], pool: PagePool, cache: RadixCache, owners: Iterable[Request]
) -> list[GroupPages]:
    """One for each kind, in the order of `groups`; `owners` are all requests that may hold pages.

    O(1) for models with one kind of groups, else O(pages in block tables and nodes).
    """
    kinds = list(dict.fromkeys(group.kind for group in groups))
    if len(kinds) == 1:
        counts = pool.counts()
        return [GroupPages(kinds[0], counts.held, counts.cached)]
    owners = list(owners)
    nodes = list(cache.nodes())
    held, cached = dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0)
    for number, group in enumerate(groups):
        of_group = slice(number, None, len(groups))
        held[group.kind] += sum(_num_held(pool, request.pages[of_group]) for request in owners)
        tables = (node.pages[of_group] for node in nodes)
        cached[group.kind] += sum(len(table) - table.count(NO_PAGE) for table in tables)
    return [GroupPages(kind, held[kind], cached[kind]) for kind in kinds]


def _num_held(pool: PagePool, pages: Sequence[int]) -> int:
    return sum(page != NO_PAGE and pool.state(page) is PageState.HELD for page in pages)
