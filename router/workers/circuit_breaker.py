"""A circuit breaker for one worker: clients' requests make it doubtful, only the probe takes it out of use.

That a few requests failed on a worker may be their own fault, or another worker's. So it is first merely
avoided, and asked at once for something harmless (see worker_probe.py).
"""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Final

__all__ = ["CircuitBreaker", "CircuitState"]

_MAX_FAILURES: Final = 3


class CircuitState(IntEnum):
    """The smaller the better."""

    CLOSED = 0
    SUSPECT = 1
    """Requests failed on it, several in a row: it gets new ones only where no other worker is."""
    OPEN = 2
    """The probe failed on it too: it gets none, until a probe comes back."""


class CircuitBreaker:
    """Of a worker over all its incarnations."""

    def __init__(self) -> None:
        self.state = CircuitState.CLOSED
        self.proved_at = time.monotonic()
        """When something last went well; at first, the benefit of the doubt."""
        self.failures = 0
        """Of requests, in a row."""

    def request_done(self) -> None:
        """The worker has done its part in a request."""
        self.failures = 0
        self.proved_at = time.monotonic()
        if self.state is CircuitState.SUSPECT:
            self.state = CircuitState.CLOSED

    def request_failed(self) -> None:
        """And that speaks against the worker."""
        self.failures += 1
        if self.failures >= _MAX_FAILURES and self.state is CircuitState.CLOSED:
            self.state = CircuitState.SUSPECT

    def probe_succeeded(self) -> None:
        self.state = CircuitState.CLOSED
        self.request_done()

    def probe_failed(self) -> None:
        self.state = CircuitState.OPEN if self.state is not CircuitState.CLOSED else CircuitState.SUSPECT
