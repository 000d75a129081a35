"""Waiting requests in order of admission."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

from engine.core.request import Request
from engine.sched.queue.prefix_ranker import PrefixRanker


class _Entry(NamedTuple):
    """Sorts by the policy's key, then preempted requests first, then by arrival; numbers are unique."""

    key: float
    is_new: bool
    number: int
    request: Request


class WaitingQueue:
    """Kept sorted as requests arrive, so that a step looks only at requests that it may admit.

    `add` and `remove` cost a binary search and a move of references; `in_order` a copy of the references.
    """

    def __init__(
        self,
        key: Callable[[Request], float],
        *,
        aging_tokens: int | None,
        ranker: PrefixRanker | None = None,
        quantum: int | None = None,
    ) -> None:
        self.admitted_tokens = 0
        """Prompt tokens admitted so far, in which the age of requests is measured."""
        self.num_preempted = 0
        self._key = key
        self._aging_tokens = aging_tokens
        self._ranker = ranker
        self._quantum = quantum
        self._entries: list[_Entry] = []
        self._by_arrival: list[tuple[int, Request]] = []
        self._of: dict[int, _Entry] = {}
        """Entries by request number."""
        self._tenants: dict[str, list[_Entry]] = {}
        """Entries by tenant, sorted the same way; only with a quantum, and only tenants with waiting
        requests."""
        self._served: dict[str, int] = {}
        """Prompt tokens admitted per tenant since the queue was last empty."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (entry.request for entry in self._entries)

    def __getitem__(self, index: int) -> Request:
        return self._entries[index].request

    @property
    def oldest(self) -> int:
        """Number of the waiting request that was submitted first."""
        return self._by_arrival[0][0]

    def add(self, request: Request) -> None:
        is_new = request.num_cached is None
        entry = _Entry(self._key(request), is_new, request.scheduling.number, request)
        insort(self._entries, entry)
        insort(self._by_arrival, (request.scheduling.number, request))
        self._of[request.scheduling.number] = entry
        self.num_preempted += not is_new
        if self._quantum is not None:
            self._join(request.tenant)
            insort(self._tenants[request.tenant], entry)

    def remove(self, request: Request) -> None:
        entry = self._of.pop(request.scheduling.number)
        del self._entries[bisect_left(self._entries, entry)]
        del self._by_arrival[bisect_left(self._by_arrival, (request.scheduling.number,))]
        self.num_preempted -= not entry.is_new
        if self._ranker is not None:
            self._ranker.forget(request)
        if self._quantum is not None:
            mine = self._tenants[request.tenant]
            del mine[bisect_left(mine, entry)]
            if not mine:
                del self._tenants[request.tenant]
            if not self._tenants:
                self._served.clear()

    def admitted(self, request: Request, tokens: int) -> None:
        """Remove a request that starts to run, with `tokens` of its prompt to compute."""
        self.admitted_tokens += tokens
        if self._quantum is not None:
            self._served[request.tenant] += tokens
        self.remove(request)

    def is_aged(self, request: Request) -> bool:
        age = self.admitted_tokens - request.scheduling.tokens_before
        return self._aging_tokens is not None and age >= self._aging_tokens

    def ahead_of(self, key: float) -> Iterator[Request]:
        """Requests that the policy orders before a new one with this key."""
        return (entry.request for entry in self._entries if entry.key <= key)

    def in_order(self) -> Iterator[tuple[float, Request]]:
        """Requests with their keys; -inf for those that go first because of their age.

        Requests may be removed during the iteration.
        """
        aged: set[int] = set()
        if self._by_arrival and self.is_aged(self._by_arrival[0][1]):
            old = [request for _, request in self._by_arrival if self.is_aged(request)]
            aged = {request.scheduling.number for request in old}
            yield from ((-math.inf, request) for request in old)
        for key, _, number, request in self._by_policy():
            if number not in aged:
                yield key, request

    def _by_policy(self) -> Iterator[_Entry]:
        if self._quantum is not None and len(self._tenants) > 1:
            return self._by_tenant(self._quantum)
        if self._ranker is not None:
            ranked = self._ranker.order(self._entries[: self._ranker.window], attrgetter("request"))
            return iter([*ranked, *self._entries[self._ranker.window :]])
        return iter(self._entries.copy())

    def _by_tenant(self, quantum: int) -> Iterator[_Entry]:
        """Deficit round robin: each tenant in turn, until it has used its quantum of the round.

        A tenant's last request of a round may exceed the quantum; later rounds make up for it.
        """
        served = dict(self._served)
        queues = {tenant: iter(entries.copy()) for tenant, entries in self._tenants.items()}
        rounds = [(served[tenant] // quantum, turn, tenant) for turn, tenant in enumerate(queues)]
        heapq.heapify(rounds)
        while rounds:
            _, turn, tenant = rounds[0]
            entry = next(queues[tenant], None)
            if entry is None:
                heapq.heappop(rounds)
                continue
            yield entry
            served[tenant] += entry.request.num_pending - entry.request.scheduling.num_expected
            heapq.heapreplace(rounds, (served[tenant] // quantum, turn, tenant))

    def _join(self, tenant: str) -> None:
        """A tenant that had nothing waiting starts with the usage of the least served other tenant."""
        if tenant not in self._tenants:
            least = min((self._served[other] for other in self._tenants), default=0)
            self._served[tenant] = max(self._served.get(tenant, 0), least)
            self._tenants[tenant] = []
