"""Circuit breaker of a worker. Failed requests make it suspect; only a failed probe opens the circuit.

A failed request may be its own fault or that of another worker. A suspect worker is therefore only avoided,
and probed at once (see worker_probe.py).
"""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Final

_MAX_FAILURES: Final = 3


class CircuitState(IntEnum):
    """Ordered: smaller is better."""

    CLOSED = 0
    SUSPECT = 1
    """Several requests in a row failed: used only if no other worker is available."""
    OPEN = 2
    """A probe failed too: no requests until a probe succeeds."""


class CircuitBreaker:
    """State of a worker over all its incarnations."""

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

    def probe_succeeded(self) -> None:
        self.state = CircuitState.CLOSED
        self.request_done()

    def probe_failed(self) -> None:
        self.state = CircuitState.OPEN if self.state is not CircuitState.CLOSED else CircuitState.SUSPECT
