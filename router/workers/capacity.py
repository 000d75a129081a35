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
    """One worker: its last report, and what this router sent it that the report does not cover."""

    rank: Rank = Rank.GOOD
    requests: int = 0
    """That this router sent, and that have not ended."""
    tokens: int = 0
    """Of those requests when they were sent, without those that the worker had cached."""
    cached_tokens: int = 0
    """Of the request that is to be placed: the longest prefix of its prompt that the worker has cached."""
    page_size: int = 1
    max_running: int = 0
    """Requests that it computes at a time; 0: unknown."""
    total_pages: int = 0
    """0: it has not reported yet."""
    free_pages: int = 0
    """Free or evictable."""
    running: int = 0
    """Requests that it computes."""
    starved: int = 0
    """Requests that wait at it for pages or for a slot."""
    incoming: int = 0
    """Handoffs that have their pages."""
    queued_handoffs: int = 0
    queued_pages: int = 0
    """That those wait for."""
    promised: int = 0
    """Requests that were sent, or are about to be, and that the report does not cover."""
    promised_pages: int = 0
    fresh_share: float = 1.0
    """Of a prompt's pages, how many it has not cached: as its last reservations went, in (0, 1]."""

    def pages_for(self, tokens: int) -> int:
        """Pages for a request of this many tokens: those that are not cached, and one to grow into.

        At most the whole pool: a request that fills it alone must not wait for more.
        """
        pages = math.ceil(-(-tokens // self.page_size) * self.fresh_share) + 1
        return min(pages, self.total_pages)

    def has_room(self, tokens: int) -> bool:
        """Whether the worker could compute a request of this size now; True before its first report."""
        if not self.total_pages:
            return True
        if self.starved:
            return False  # its engine admits those first
        active = self.running + self.incoming + self.queued_handoffs + self.promised
        if self.max_running and active >= self.max_running:
            return False
        # As in Engine.reserve, every request keeps a page to grow into; what was promised has it counted in.
        growth = self.running + self.incoming + self.queued_handoffs
        taken = self.queued_pages + self.promised_pages + growth
        return self.pages_for(tokens) + taken <= self.free_pages


class Loaded(Protocol):
    """Requests that a worker has not finished, their tokens, and what it has cached of the next one."""

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
    """The one with the least sum of queued tokens and twice the tokens of this request that it must compute.

    Twice, because they delay this request and whatever comes after it. Cached tokens do not count, neither of
    this request nor of those before it. So a prefix is used where it is cached until a worker has twice its
    length more work queued than another; then the other one computes it too, and both have it: a hot prefix
    spreads instead of overloading a worker. Equals take turns. After the cost of Dynamo's KV-aware router.
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


def preferred(workers: Sequence[WorkerView]) -> list[int]:
    """Indices of the workers of the best rank that there is.

    A worker on which this request failed gets it again only if there is no other, and a late one only if all
    are late: the request then waits for its next heartbeat, or is retried elsewhere when the worker is lost.
    """
    best = min((worker.rank for worker in workers), default=Rank.GOOD)
    return [i for i, worker in enumerate(workers) if worker.rank is best]


def any_has_room(workers: Sequence[WorkerView], tokens: int) -> bool:
    """Whether `place` would find a worker with room. True without workers: there is none to wait for."""
    return not workers or any(workers[i].has_room(tokens) for i in preferred(workers))


def place(workers: Sequence[WorkerView], tokens: int, choose: Choose, turn: int) -> int:
    """Index of the worker that gets a request: of the preferred, one with room if there is one.

    O(workers). `workers` are at least one.
    """
    best = preferred(workers)
    among = [i for i in best if workers[i].has_room(tokens)] or best
    return among[choose([workers[i] for i in among], turn)]
