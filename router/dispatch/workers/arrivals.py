"""Compares the time stamps of a worker's batches with their arrival: what was late, and where."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from rpc.baton.v1 import worker_pb2

_WINDOW_S: Final = 30.0
"""The fastest batch of the last one or two windows tells how far apart the two clocks are."""
_LATE_S: Final = 0.01
"""Batches later than this are looked at."""


class BatchTiming(NamedTuple):
    """The way of a batch from the engine thread to this router. In seconds."""

    send_s: float = 0.0
    """From the engine thread to the worker's stream."""
    loop_s: float = 0.0
    """Then it waited while this router's event loop did something else."""
    network_s: float = 0.0
    """The rest by which it was later than the fastest batches."""
    slow: worker_pb2.SlowStep | None = None
    """The worker's latest slow step,"""
    slow_at: float = -math.inf
    """and when it was reported."""


ON_TIME: Final = BatchTiming()


class Arrivals:
    """Arrival clock of one session; both ends must be the same processes for its whole life."""

    def __init__(self, busy_since: Callable[[float], float]) -> None:
        """`busy_since`: seconds of the event loop's longest turn since a time."""
        self._busy_since = busy_since
        self._window_ends = -math.inf
        self._fastest = self._fastest_before = math.inf
        self._latest = ON_TIME

    def note(self, batch: worker_pb2.EventBatch, now: float) -> BatchTiming:
        """`now`: on this router's clock, which need not agree with the worker's. O(1)."""
        slow, slow_at = self._latest.slow, self._latest.slow_at
        if batch.HasField("slow_step"):
            slow, slow_at = batch.slow_step, now
        if not batch.written_s:  # a worker of an older version
            self._latest = BatchTiming(slow=slow, slow_at=slow_at)
            return self._latest
        took = now - batch.written_s
        self._turn_window(now)
        self._fastest = min(self._fastest, took)
        late = took - min(self._fastest, self._fastest_before)
        busy = min(self._busy_since(now - late), late) if late > _LATE_S else 0.0
        send_s = batch.written_s - batch.sent_s if batch.sent_s else 0.0
        self._latest = BatchTiming(send_s, busy, late - busy, slow, slow_at)
        return self._latest

    def _turn_window(self, now: float) -> None:
        if now >= self._window_ends:
            self._fastest_before, self._fastest = self._fastest, math.inf
            self._window_ends = now + _WINDOW_S
