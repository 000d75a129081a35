"""Whether a worker may be used: its heartbeats, and the circuit breaker after failures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import Enum, IntEnum
from functools import partial
from typing import Final

from rpc.session import BEAT_S, LEASE_S

_MAX_FAILURES: Final = 3


class CircuitState(IntEnum):
    """Ordered: smaller is better."""

    CLOSED = 0
    SUSPECT = 1
    """Several requests in a row, or a probe of another router failed: used only if no other worker is
    available."""
    OPEN = 2
    """A probe failed too: no requests until a probe succeeds."""


class CircuitBreaker:
    """State of a worker over all its incarnations.

    Failed requests make it suspect; only a failed probe opens the circuit: a failed request may be its own
    fault or that of another worker. A suspect worker is therefore only avoided, and probed at once.
    """

    def __init__(self) -> None:
        self.state = CircuitState.CLOSED
        self.proved_at = time.monotonic()
        """Time of the last success; initially the time of creation."""
        self.failures = 0
        """Consecutive failed requests."""

    def request_done(self) -> None:
        """Record that the worker completed its part of a request."""
        self.failures = 0
        self.proved_at = time.monotonic()
        if self.state is CircuitState.SUSPECT:
            self.state = CircuitState.CLOSED

    def request_failed(self) -> None:
        """Record a failure that may be the worker's fault."""
        self.failures += 1
        if self.failures >= _MAX_FAILURES and self.state is CircuitState.CLOSED:
            self.state = CircuitState.SUSPECT

    def doubt(self) -> bool:
        """Record that another router's probe failed. Returns whether that is news."""
        is_news = self.state is CircuitState.CLOSED
        if is_news:
            self.state = CircuitState.SUSPECT
        return is_news

    def probe_succeeded(self) -> None:
        self.state = CircuitState.CLOSED
        self.request_done()

    def probe_failed(self) -> None:
        self.state = CircuitState.OPEN if self.state is not CircuitState.CLOSED else CircuitState.SUSPECT


class Liveness(Enum):
    GOOD = "good"
    LATE = "late"
    """Gets no new requests and is probed; its streams are kept."""
    LOST = "lost"
    """Its streams are retried on other workers."""


class HeartbeatMonitor:
    """Decides when a worker without heartbeats is late, and when it is lost. Takes durations; has no clock.

    A busy machine, or a thread that holds the GIL, can delay a healthy worker's heartbeats for a second or
    more. Dropping the worker means a second prefill for each of its streams, while new requests can go to
    others. So there are two timeouts: late (no new requests, and a probe) and lost.
    """

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


_boot_time: Final = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
_PAUSE_S: Final = LEASE_S - BEAT_S
"""Pause of a router after which workers may have ended its sessions. Its last heartbeat was sent before."""
_AFTERMATH_S: Final = 5.0
"""For what happened during a pause to reach the event loop."""


class OwnPauses:
    """Whether this router was itself stopped or hung, until now or a moment ago.

    Its workers' sessions have ended then, or its connections timed out, which says nothing about the workers.
    """

    def __init__(self, clock: Callable[[], float] = _boot_time) -> None:
        """`clock`: one that also runs while the machine is suspended."""
        self._clock = clock
        self._turned_at = clock()
        self._paused_at = -math.inf

    def turned(self) -> None:
        """Record a turn of the event loop; call it several times a second."""
        now = self._clock()
        if now - self._turned_at >= _PAUSE_S:
            self._paused_at = now
        self._turned_at = now

    @property
    def is_recent(self) -> bool:
        now = self._clock()
        return now - self._turned_at >= _PAUSE_S or now - self._paused_at < _AFTERMATH_S
