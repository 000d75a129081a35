"""Worker selection: which workers have room for a request, and which of them gets it.

Pure functions over a view of each worker.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeAlias

__all__ = [
    "Choose",
    "Loaded",
    "Rank",
    "WorkerView",
    "any_has_room",
    "least_loaded",
    "place",
    "power_of_two",
    "preferred",
    "prefix_aware",
    "round_robin",
]


class Rank(IntEnum):
    """Order of preference of a worker for a request; smaller is better. See `preferred`."""

    GOOD = 0
    SUSPECT = 1
    """Several requests failed on it in a row."""
    AVOIDED = 2
    """This request has failed on it."""
    LATE = 3
    """Its heartbeats are late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """Load of one worker: its last report, and the requests sent since that the report does not cover."""

    rank: Rank = Rank.GOOD
    requests: int = 0
    """Unfinished requests of this router."""
    tokens: int = 0
    """Tokens of those requests when they were sent, without cached ones."""
    cached_tokens: int = 0
    """Longest cached prefix of the request that is to be placed."""
    page_size: int = 1
    max_running: int = 0
    """Requests that the worker computes concurrently; 0: unknown."""
    total_pages: int = 0
    """0: no report yet."""
    free_pages: int = 0
    """Free or evictable."""
    quarantined_pages: int = 0
    """Of failed handoffs: free again when no write can land in them."""
    running: int = 0
    """Requests that the worker computes."""
    starved: int = 0
    """Requests that wait at the worker for pages or for a slot."""
    incoming: int = 0
    """Handoffs with reserved pages."""
    queued_handoffs: int = 0
    """Handoffs that wait for pages."""
    queued_pages: int = 0
    """Pages that those wait for."""
    promised: int = 0
    """Requests that were sent, or are about to be, and are not in the report yet."""
    promised_pages: int = 0
    fresh_share: float = 1.0
    """Share of a prompt's pages that were not cached, averaged over recent reservations, in (0, 1]."""

    @property
    def usable_pages(self) -> int:
        return self.total_pages - self.quarantined_pages

    def fits(self, tokens: int) -> bool:
        """Whether the worker could compute a request of this size, if it computed no other.

        False only while pages that it needs are quarantined: the worker itself refuses what exceeds its pool.
        """
        return min(-(-tokens // self.page_size), self.total_pages) <= self.usable_pages

    def pages_for(self, tokens: int) -> int:
        """Pages for a request of this many tokens: those that are not cached, and one to grow into.

        At most all usable ones: a request that fills the pool alone must not wait for more.
        """
        pages = math.ceil(-(-tokens // self.page_size) * self.fresh_share) + 1
        return min(pages, self.usable_pages)

    def has_room(self, tokens: int) -> bool:
        """Whether the worker could compute a request of this size now; True before its first report."""
        if not self.total_pages:
            return True
        if self.starved or not self.fits(tokens):
            return False  # the engine admits the starved requests first
        active = self.running + self.incoming + self.queued_handoffs + self.promised
        if self.max_running and active >= self.max_running:
            return False
        # As in Engine.reserve, every request keeps a page to grow into; promised_pages include it.
        growth = self.running + self.incoming + self.queued_handoffs
        taken = self.queued_pages + self.promised_pages + growth
        return self.pages_for(tokens) + taken <= self.free_pages


class Loaded(Protocol):
    """Unfinished requests of a worker, their tokens, and the cached prefix of the request to be placed."""

    @property
    def requests(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...


Choose: TypeAlias = Callable[[Sequence[Loaded], int], int]
"""(workers, turn) -> index: one of `workers`, at least one. `turn` grows by one with every choice."""


def round_robin(workers: Sequence[Loaded], turn: int) -> int:
    """Round-robin, regardless of load."""
    return turn % len(workers)


def least_loaded(workers: Sequence[Loaded], turn: int) -> int:
    """The worker with the fewest unfinished tokens; ties are broken round-robin."""
    first = turn % len(workers)
    in_turn: list[int] = [*range(first, len(workers)), *range(first)]
    return min(in_turn, key=lambda i: (workers[i].tokens, workers[i].requests))


def prefix_aware(workers: Sequence[Loaded], turn: int) -> int:
    """The worker with the least cost: queued tokens, plus twice the tokens of this request to compute there.

    Twice, because they delay this request and all later ones. Cached tokens do not count, neither of this
    request nor of queued ones. A request thus goes to the worker that has its prefix cached, unless that has
    more than twice the prefix's length more tokens queued than another; the other worker then computes and
    caches the prefix too, so requests with a popular prefix do not overload one worker. Ties are broken
    round-robin. The cost is that of Dynamo's KV-aware router.
    """
    first = turn % len(workers)
    in_turn: list[int] = [*range(first, len(workers)), *range(first)]
    return min(in_turn, key=lambda i: (workers[i].tokens - 2 * workers[i].cached_tokens, workers[i].requests))


def power_of_two(workers: Sequence[Loaded], turn: int) -> int:
    """The less loaded of two drawn at random: O(1), and close to the least loaded of all."""
    if len(workers) < 2:
        return 0
    drawn = random.Random(turn).sample(range(len(workers)), 2)
    return min(drawn, key=lambda i: (workers[i].tokens, workers[i].requests))


def preferred(workers: Sequence[WorkerView], tokens: int) -> list[int]:
    """Indices of the workers of the best rank present, among those that a request of this size fits.

    A worker on which this request failed gets it again only if there is no other. A late worker gets it only
    if all are late: the request then waits for a heartbeat, or is retried when the worker is lost. Empty if
    the request fits none.
    """
    fitting = [i for i, worker in enumerate(workers) if worker.fits(tokens)]
    best = min((workers[i].rank for i in fitting), default=Rank.GOOD)
    return [i for i in fitting if workers[i].rank is best]


def any_has_room(workers: Sequence[WorkerView], tokens: int) -> bool:
    """Whether `place` would find a worker with room. True without workers, since waiting would not help."""
    return not workers or any(workers[i].has_room(tokens) for i in preferred(workers, tokens))


def place(workers: Sequence[WorkerView], tokens: int, choose: Choose, turn: int) -> int:
    """Index of the worker that gets a request: a preferred one, with room if possible.

    O(workers). `workers` must not be empty.
    """
    best = preferred(workers, tokens) or preferred(workers, 0)
    among = [i for i in best if workers[i].has_room(tokens)] or best
    return among[choose([workers[i] for i in among], turn)]
