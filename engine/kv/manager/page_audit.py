"""Counts KV pages by owner and by kind, and checks that all accounts add up. On request: no step needs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from common.kv_groups import NO_PAGE, KVGroup
from engine.core.request import Request
from engine.errors import PageLeak
from engine.kv.cache.pages import PageCounts, PagePool, PageState
from engine.kv.cache.radix import RadixCache
from engine.kv.manager.arriving_prefixes import ArrivingPrefixes
from engine.kv.manager.block_tables import BlockTableAllocator
from engine.kv.manager.prefix_holds import PrefixHolds
from engine.kv.manager.reservations import Reservation
from engine.kv.manager.state_slots import StateSlots


def check_pages(
    owners: list[Request],
    lent: Sequence[Reservation],
    *,
    pool: PagePool,
    cache: RadixCache,
    tables: BlockTableAllocator,
    arriving: ArrivingPrefixes,
    holds: PrefixHolds,
    states: StateSlots,
    leaving: Set[int],
) -> PageCounts:
    """Every page has exactly one owner. `owners`: all requests that may have pages. `leaving`: to a tier.

    Costs O(pages in the pool). Raises PageLeak.
    """
    counts = pool.recount()
    held = [page for request in owners for page in tables.held_by(request)]
    in_nodes = [page for node in cache.nodes() for page in node.pages]
    cached = [page for page in in_nodes if page != NO_PAGE]
    incoming = [page for reservation in lent for page in reservation.incoming] + arriving.pages
    readers = [*owners, *(reservation.request for reservation in lent)]
    read = sum(len(cache.windows.among(request.pages)) for request in readers)
    accounts = {
        "counters": (pool.counts(), counts),
        "held": (len(set(held)), len(held), counts.held),
        "cached": (len(set(cached)), len(cached), counts.cached),
        "reserved": (len(set(incoming)), len(incoming), counts.in_flight + counts.quarantined),
        "leaving": (len(leaving), counts.leaving),
        "read": (cache.windows.num_reads, read + holds.num_reads),
    }
    for name, values in accounts.items():
        if len(set(values)) != 1:
            raise PageLeak(f"pages {name} do not add up: {values}; {counts}")
    states.check(owners, [reservation.request for reservation in lent], arriving.slots, holds.checkpoints)
    return counts


@dataclass(frozen=True, slots=True)
class GroupPages:
    """Pages of all groups of one kind. A page that several requests share is cached, and counts once."""

    kind: str
    held: int
    """Pages held by requests alone."""
    cached: int
    """Pages owned by the radix cache."""


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
