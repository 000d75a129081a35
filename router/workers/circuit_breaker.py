"""A circuit breaker for one worker: clients' requests make it doubtful, only the canary takes it out of use.

That a few requests failed on a worker may be their own fault, or another worker's. So it is first merely
avoided, and asked at once for something harmless (see canary.py).
"""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Final

__all__ = ["Health", "Trust"]

_MAX_FAILURES: Final = 3


class Trust(IntEnum):
    """The smaller the better."""

    GOOD = 0
    DOUBTED = 1
    """Requests failed on it, several in a row: it gets new ones only where no other worker is."""
    BAD = 2
    """The canary failed on it too: it gets none, until a canary comes back."""


class Health:
    """Of a worker over all its incarnations."""

    def __init__(self) -> None:
        self.trust = Trust.GOOD
        self.proved_at = time.monotonic()
        """When something last went well; at first, the benefit of the doubt."""
        self.failures = 0
        """Of requests, in a row."""

    def request_done(self) -> None:
        """The worker has done its part in a request."""
        self.failures = 0
        self.proved_at = time.monotonic()
        if self.trust is Trust.DOUBTED:
            self.trust = Trust.GOOD

    def request_failed(self) -> None:
        """And that speaks against the worker."""
        self.failures += 1
        if self.failures >= _MAX_FAILURES and self.trust is Trust.GOOD:
            self.trust = Trust.DOUBTED

    def canary_came_back(self) -> None:
        self.trust = Trust.GOOD
        self.request_done()

    def canary_failed(self) -> None:
        self.trust = Trust.BAD if self.trust is not Trust.GOOD else Trust.DOUBTED
