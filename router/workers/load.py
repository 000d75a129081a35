"""The router's view of a worker's load."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from router.workers.capacity import Rank, WorkerView
from rpc.baton.v1 import worker_pb2

__all__ = ["WorkerLoad"]

_WEIGHT: Final = 0.1
"""Weight of the latest reservation in the moving average of the share of uncached pages."""


@dataclass(slots=True)
class WorkerLoad:
    """Unfinished requests sent to a worker by this router, and the worker's last load report.

    The router's own count is exact and immediate, so a burst of requests is spread before the first report
    about it arrives. The report is up to 0.1 s old. It states how many commands it covers; requests sent
    after those are counted here until a report covers them.
    """

    page_size: int = 1
    max_running: int = 0
    requests: int = 0
    tokens: int = 0
    """Tokens of those requests when they were sent, without cached ones."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while `requests` is 0."""
    _reported: worker_pb2.Load = field(default_factory=worker_pb2.Load)
    _promised: int = 0
    _promised_pages: int = 0
    _unseen: deque[tuple[int, int]] = field(default_factory=deque)
    """(command number, pages) of requests that no report covers yet."""
    _fresh_share: float = 1.0

    def __post_init__(self) -> None:
        self.idle.set()

    def add(self, tokens: int) -> None:
        self.idle.clear()
        self.requests += 1
        self.tokens += tokens

    def remove(self, tokens: int) -> None:
        self.requests -= 1
        self.tokens -= tokens
        if not self.requests:
            self.idle.set()

    @property
    def waiting(self) -> int:
        """Requests queued at the worker, as it last reported."""
        return self._reported.waiting

    @property
    def waits_for(self) -> str:
        """Why the head of the worker's queue waits, as it last reported; empty: nothing waits."""
        return self._reported.waits_for

    def promise(self, tokens: int) -> int:
        """Count a request that is about to be sent; returns its pages, for `withdraw`."""
        pages = -(-tokens // self.page_size)
        self._promised += 1
        self._promised_pages += pages
        return pages

    def withdraw(self, pages: int) -> None:
        """Undo `promise`: the request was sent, or will not be."""
        self._promised -= 1
        self._promised_pages -= pages

    def sent(self, command: int, tokens: int) -> None:
        """Count a request of this many tokens, submitted by command number `command` of the session."""
        self._unseen.append((command, self.promise(tokens)))

    def report(self, load: worker_pb2.Load, commands: int) -> None:
        """Take a report of the worker that covers the first `commands` commands of the session."""
        self._reported = load
        while self._unseen and self._unseen[0][0] <= commands:
            self.withdraw(self._unseen.popleft()[1])

    def reserved(self, pages: int, tokens: int) -> None:
        """Record that a request of `tokens` tokens reserved this many pages; the others were cached."""
        share = pages / max(-(-tokens // self.page_size), 1)
        self._fresh_share += _WEIGHT * (min(share, 1.0) - self._fresh_share)

    def view(self, rank: Rank = Rank.GOOD, cached_tokens: int = 0) -> WorkerView:
        """The load, for worker selection. `cached_tokens`: cached prefix of the request to be placed."""
        reported = self._reported
        return WorkerView(
            rank=rank,
            requests=self.requests,
            tokens=self.tokens,
            cached_tokens=cached_tokens,
            page_size=self.page_size,
            max_running=self.max_running,
            total_pages=reported.total_pages,
            free_pages=reported.free_pages,
            quarantined_pages=reported.quarantined_pages,
            running=reported.running,
            starved=reported.starved,
            incoming=reported.incoming,
            queued_handoffs=reported.queued_handoffs,
            queued_pages=reported.queued_pages,
            promised=self._promised,
            promised_pages=round(self._promised_pages * self._fresh_share) + self._promised,
            fresh_share=self._fresh_share,
        )
