"""Decides when a worker without heartbeats is late, and when it is lost. Takes durations; has no clock.

A busy machine, or a thread that holds the GIL, can delay a healthy worker's heartbeats for a second or more.
Dropping the worker means a second prefill for each of its streams, while new requests can go to others. So
there are two timeouts: late (no new requests, and a probe) and lost.
"""

from __future__ import annotations

from enum import Enum


class Liveness(Enum):
    GOOD = "good"
    LATE = "late"
    """Gets no new requests and is probed; its streams are kept."""
    LOST = "lost"
    """Its streams are retried on other workers."""


class HeartbeatMonitor:
    """Monitors one worker's stream."""

    def __init__(self, timeout_s: float, grace_s: float) -> None:
        """Late after `timeout_s` without a message, lost `grace_s` later."""
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._silent_s = 0.0
        self.has_answered = False
        """Whether a probe was answered since the last message."""

    @property
    def liveness(self) -> Liveness:
        if self._silent_s < self._timeout_s:
            return Liveness.GOOD
        return Liveness.LATE if self._silent_s < self._timeout_s + self._grace_s else Liveness.LOST

    def heard(self) -> None:
        """Record a message over the stream."""
        self._silent_s, self.has_answered = 0.0, False

    def answered(self) -> None:
        """Record an answered probe.

        It restarts the timeouts, but only once until the next message over the stream: a process that answers
        probes while its stream stays silent is lost after twice the time.
        """
        if not self.has_answered:
            self._silent_s, self.has_answered = 0.0, True

    def passed(self, seconds: float) -> Liveness:
        """Advance by `seconds` without a message."""
        self._silent_s += seconds
        return self.liveness
