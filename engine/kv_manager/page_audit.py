"""Checks that the accounts of all owners of KV pages add up."""

from __future__ import annotations

from collections.abc import Sequence, Set

from common.kv_groups import NO_PAGE
from engine.core.request import Request
from engine.errors import PageLeak
from engine.kv_cache.pages import PageCounts, PagePool
from engine.kv_cache.radix import RadixCache
from engine.kv_manager.arriving_prefixes import ArrivingPrefixes
from engine.kv_manager.block_tables import BlockTables
from engine.kv_manager.prefix_holds import PrefixHolds
from engine.kv_manager.reservations import Reservation
from engine.kv_manager.state_slots import StateSlots


def check_pages(
    owners: list[Request],
    lent: Sequence[Reservation],
    *,
    pool: PagePool,
    cache: RadixCache,
    tables: BlockTables,
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
