"""How busy a worker is, as the router knows it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rpc.baton.v1 import worker_pb2

__all__ = ["WorkerLoad"]


@dataclass(slots=True)
class WorkerLoad:
    """What this router has sent to a worker and not seen the end of, and the worker's own last report.

    The router's own count is exact and immediate: a burst of requests spreads before the first report
    about it is back. The report is the worker's view, one engine step old.
    """

    requests: int = 0
    tokens: int = 0
    """Tokens of those requests when they were sent."""
    reported: worker_pb2.Load = field(default_factory=worker_pb2.Load)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is no request."""

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
