"""Worker selection by load: which workers come into question for a request, and which of them gets it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from router.config.choices import Routing
from router.workers.room import Room

__all__ = [
    "POLICIES",
    "Choose",
    "Health",
    "LoadView",
    "any_has_room",
    "least_loaded",
    "place",
    "power_of_two",
    "preferred",
    "prefix_aware",
    "round_robin",
]


class Health(IntEnum):
    """Order of preference of a worker for a request; smaller is better. See `preferred`."""

    GOOD = 0
    SUSPECT = 1
    """Several requests failed on it in a row."""
    AVOIDED = 2
    """This request has failed on it."""
    LATE = 3
    """Its heartbeats are late."""


_UNKNOWN: Final = Room()
"""Without a report there is room."""


@dataclass(frozen=True, slots=True)
class LoadView:
    """The load of one worker, as policies by load see it."""

    requests: int = 0
    """Unfinished requests of this router."""
    tokens: int = 0
    """Of those requests when they were sent, without cached ones."""
    cached_tokens: int = 0
    """Longest cached prefix of the request to be placed."""
    health: Health = Health.GOOD
    room: Room = _UNKNOWN


Choose: TypeAlias = Callable[[Sequence[LoadView], int], int]
"""(workers, turn) -> index: one of `workers`, at least one. `turn` grows by one with every choice."""


def round_robin(workers: Sequence[LoadView], turn: int) -> int:
    """Round-robin, regardless of load."""
    return turn % len(workers)


def least_loaded(workers: Sequence[LoadView], turn: int) -> int:
    """The worker with the fewest unfinished tokens; ties are broken round-robin."""
    first = turn % len(workers)
    in_turn: list[int] = [*range(first, len(workers)), *range(first)]
    return min(in_turn, key=lambda i: (workers[i].tokens, workers[i].requests))


def prefix_aware(workers: Sequence[LoadView], turn: int) -> int:
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


def power_of_two(workers: Sequence[LoadView], turn: int) -> int:
    """The less loaded of two drawn at random: O(1), and close to the least loaded of all."""
    if len(workers) < 2:
        return 0
    drawn = random.Random(turn).sample(range(len(workers)), 2)
    return min(drawn, key=lambda i: (workers[i].tokens, workers[i].requests))


def preferred(workers: Sequence[LoadView], tokens: int) -> list[int]:
    """Indices of the workers of the best health present, among those that a request of this size fits.

    A worker on which this request failed gets it again only if there is no other. A late worker gets it only
    if all are late: the request then waits for a heartbeat, or is retried when the worker is lost. Empty if
    the request fits none.
    """
    fitting = [i for i, worker in enumerate(workers) if worker.room.fits(tokens)]
    best = min((workers[i].health for i in fitting), default=Health.GOOD)
    return [i for i in fitting if workers[i].health is best]


def any_has_room(workers: Sequence[LoadView], tokens: int) -> bool:
    """Whether `place` would find a worker with room. True without workers, since waiting would not help."""
    return not workers or any(workers[i].room.has_room(tokens) for i in preferred(workers, tokens))


def place(workers: Sequence[LoadView], tokens: int, choose: Choose, turn: int) -> int:
    """Index of the worker that gets a request: a preferred one, with room if possible.

    O(workers). `workers` must not be empty.
    """
    best = preferred(workers, tokens) or preferred(workers, 0)
    among = [i for i in best if workers[i].room.has_room(tokens)] or best
    return among[choose([workers[i] for i in among], turn)]


POLICIES: Final[dict[Routing, Choose]] = {
    Routing.ROUND_ROBIN: round_robin,
    Routing.LEAST_LOADED: least_loaded,
    Routing.POWER_OF_TWO: power_of_two,
    Routing.PREFIX_AWARE: prefix_aware,
}
"""Of `--routing`."""
