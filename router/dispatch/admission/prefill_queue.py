"""Backpressure: rejects requests beyond a limit on queued prompt tokens, or on estimated queue time.

A request whose estimated queue time is too long is rejected at once with Retry-After. Its client can use
another server or retry, and the queue holds no requests whose clients will time out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from router.errors import Overloaded

_PRESSURE_TOKENS: Final = 8192
"""Pressure: this many tokens are queued, or a request waits for decode room. Only then the service rate is
measured and queue time predicted: without pressure, throughput equals the arrival rate."""
_MIN_MEASURED_S: Final = 2.0
_TIME_CONSTANT_S: Final = 30.0
"""Time constant of the service rate, in seconds under pressure."""
_RETRY_S: Final = (1.0, 60.0)
"""Bounds of Retry-After."""


class PrefillQueue:
    """Limits the prompts that wait in the router, and at the workers for their first token.

    Counts only the former: the others are in the accounts of the workers (`WorkerLoad`).
    """

    def __init__(
        self,
        max_tokens: int,
        max_wait_s: float,
        at_workers: Callable[[], int],
        held_back: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`at_workers()`: tokens of the prompts at workers. `held_back()`: sequences that wait in the router
        for room on a decode worker."""
        self._max_tokens = max_tokens
        self._max_wait_s = max_wait_s
        self._at_workers = at_workers
        self._held_back = held_back
        self._clock = clock
        self._in_router = 0
        self._at = clock()
        self._was_pressed = False
        self._served = self._seconds = 0.0
        """Prompt tokens served under pressure, and the time taken, both with exponential decay."""

    @property
    def tokens(self) -> int:
        """Prompt tokens of all sequences without a first token."""
        return self._in_router + self._at_workers()

    @property
    def held_back(self) -> int:
        """Sequences that wait in the router for room on a decode worker."""
        return self._held_back()

    def check(self, tokens: int, patience_s: float = math.inf) -> None:
        """Raises Overloaded if a prompt whose client waits for at most `patience_s` should not be queued."""
        queued = self.tokens
        self._advance(0, queued)
        wait_s, limit_s = self._wait_s(queued), min(self._max_wait_s, patience_s)
        if queued and queued + tokens > self._max_tokens:
            raise overloaded(f"{queued} prompt tokens are queued", wait_s)
        if wait_s > limit_s:
            raise overloaded(f"the estimated queue time is {wait_s:.0f} s", wait_s - limit_s)
        self._was_pressed = self._is_pressed(queued + tokens)

    @contextmanager
    def waiting(self, tokens: int) -> Iterator[None]:
        """A sequence of this many tokens waits in the router."""
        self._in_router += tokens
        try:
            yield
        finally:
            self._in_router -= tokens

    def served(self, tokens: int) -> None:
        """The first token after a prompt of this many tokens was produced."""
        self._advance(tokens, self.tokens)

    def wait_s(self) -> float:
        """Estimated queue time of a new prompt, by the recent service rate; 0 without pressure, or before the
        rate is measured."""
        return self._wait_s(self.tokens)

    def _wait_s(self, queued: int) -> float:
        if not self._is_pressed(queued) or self._seconds < _MIN_MEASURED_S or not self._served:
            return 0.0
        return queued * self._seconds / self._served

    def _is_pressed(self, queued: int) -> bool:
        return queued >= _PRESSURE_TOKENS or self._held_back() > 0

    def _advance(self, served: int, queued: int) -> None:
        """Advance the time, in which `served` tokens were served.

        The measured rate ends with the pressure: one measured in a stall must not refuse later requests.
        """
        now = self._clock()
        passed, self._at = now - self._at, now
        if self._was_pressed:
            decay = math.exp(-passed / _TIME_CONSTANT_S)
            self._served = self._served * decay + served
            self._seconds = self._seconds * decay + passed
        self._was_pressed = self._is_pressed(queued)
        if not self._was_pressed:
            self._served = self._seconds = 0.0


def overloaded(why: str, retry_s: float) -> Overloaded:
    """The error for a client that should retry after about `retry_s`."""
    least, most = _RETRY_S
    return Overloaded(f"too busy: {why}; try again later", retry_after_s=min(max(retry_s, least), most))
