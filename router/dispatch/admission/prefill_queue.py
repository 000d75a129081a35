"""Backpressure: counts queued prompt tokens, and rejects requests beyond a limit.

A request whose estimated queue time is too long is rejected at once with Retry-After. Its client can use
another server or retry, and the queue holds no requests whose clients will time out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from router.errors import Overloaded

__all__ = ["Place", "PrefillQueue", "overloaded"]

_PRESSURE_TOKENS: Final = 8192
"""Pressure: this many tokens are queued, or a request waits for decode room. Only then the service rate is
measured and queue time predicted: without pressure, throughput equals the arrival rate."""
_MIN_MEASURED_S: Final = 2.0
_TIME_CONSTANT_S: Final = 30.0
"""Time constant of the service rate, in seconds under pressure."""
_RETRY_S: Final = (1.0, 60.0)
"""Bounds of Retry-After."""


class PrefillQueue:
    """Every operation costs O(1)."""

    def __init__(
        self, max_tokens: int, max_wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tokens = 0
        """Prompt tokens of all sequences without a first token."""
        self.held_back = 0
        """Of those sequences, the ones that wait in the router for room on a decode worker."""
        self._max_tokens = max_tokens
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._at = clock()
        self._served = self._seconds = 0.0
        """Prompt tokens served under pressure, and the time taken, both with exponential decay."""

    def enter(self, tokens: int, patience_s: float = math.inf) -> Place:
        """Add a prompt whose client waits for at most `patience_s`. Raises Overloaded."""
        self._advance()
        wait_s, limit_s = self.wait_s(), min(self._max_wait_s, patience_s)
        if self.tokens and self.tokens + tokens > self._max_tokens:
            raise overloaded(f"{self.tokens} prompt tokens are queued", wait_s)
        if wait_s > limit_s:
            raise overloaded(f"the estimated queue time is {wait_s:.0f} s", wait_s - limit_s)
        self.tokens += tokens
        return Place(self, tokens)

    def wait_s(self) -> float:
        """Estimated queue time of a new prompt, by the recent service rate; 0 without pressure, or before the
        rate is measured."""
        if not self._is_under_pressure or self._seconds < _MIN_MEASURED_S or not self._served:
            return 0.0
        return self.tokens * self._seconds / self._served

    @property
    def _is_under_pressure(self) -> bool:
        return self.tokens >= _PRESSURE_TOKENS or self.held_back > 0

    def rejoin(self, tokens: int) -> None:
        """For `Place`."""
        self._advance()
        self.tokens += tokens

    def leave(self, tokens: int, *, served: bool) -> None:
        """For `Place`."""
        if self._advance() and served:
            self._served += tokens
        self.tokens -= tokens

    def _advance(self) -> bool:
        """Advance the time; returns whether there is pressure.

        The measured rate ends with the pressure: one measured in a stall must not refuse later requests.
        """
        now = self._clock()
        passed, self._at = now - self._at, now
        if not self._is_under_pressure:
            self._served = self._seconds = 0.0
            return False
        decay = math.exp(-passed / _TIME_CONSTANT_S)
        self._served *= decay
        self._seconds = self._seconds * decay + passed
        return True


class Place:
    """One prompt in the queue, until it is served or aborted."""

    __slots__ = ("_is_inside", "_prefill_queue", "_tokens")

    def __init__(self, queue: PrefillQueue, tokens: int) -> None:
        self._prefill_queue = queue
        self._tokens = tokens
        self._is_inside = True

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(served=False)

    def served(self) -> None:
        """The first token was produced. Idempotent."""
        self._leave(served=True)

    def requeue(self, tokens: int) -> None:
        """Queue the prompt again for a retry, now with `tokens` tokens. It is not rejected."""
        self._leave(served=False)
        self._prefill_queue.rejoin(tokens)
        self._tokens, self._is_inside = tokens, True

    def _leave(self, *, served: bool) -> None:
        if self._is_inside:
            self._is_inside = False
            self._prefill_queue.leave(self._tokens, served=served)


def overloaded(why: str, retry_s: float) -> Overloaded:
    """The error for a client that should retry after about `retry_s`."""
    least, most = _RETRY_S
    return Overloaded(f"too busy: {why}; try again later", retry_after_s=min(max(retry_s, least), most))
