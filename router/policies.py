"""Which worker gets a request."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from router.config import Routing
from router.worker_load import WorkerLoad

__all__ = ["Candidate", "LeastLoaded", "Policy", "RoundRobin", "policy_for"]


class Candidate(Protocol):
    @property
    def load(self) -> WorkerLoad: ...


C = TypeVar("C", bound=Candidate)


class Policy(Protocol):
    def pick(self, workers: Sequence[C]) -> C:
        """One of `workers`, which are all ready and at least one."""
        ...


class RoundRobin:
    """Each in turn, whatever they are doing."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def pick(self, workers: Sequence[C]) -> C:
        return workers[next(self._turn) % len(workers)]


class LeastLoaded:
    """The one with the fewest tokens on its hands; equals take turns."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def pick(self, workers: Sequence[C]) -> C:
        first = next(self._turn) % len(workers)
        in_turn = [*workers[first:], *workers[:first]]
        return min(in_turn, key=lambda worker: (worker.load.tokens, worker.load.requests))


_POLICIES: Final[dict[Routing, Callable[[], Policy]]] = {
    Routing.ROUND_ROBIN: RoundRobin,
    Routing.LEAST_LOADED: LeastLoaded,
}


def policy_for(routing: Routing) -> Policy:
    """A policy with a memory of its own: prefill and decode workers each take one."""
    return _POLICIES[routing]()
