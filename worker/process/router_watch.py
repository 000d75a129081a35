"""Ends a worker that has lost its router.

Ray ends the workers of a router that exits, but not on a node that is cut off from the cluster. A worker
there would keep its GPU, and keep connecting to its peers, until the network is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["RouterWatch"]


class RouterWatch:
    """Counts the sessions of a worker. All methods belong to one asyncio loop."""

    def __init__(self, timeout_s: float, on_gone: Callable[[str], None]) -> None:
        """`on_gone(reason)` is called once, after `timeout_s` without a session, `start` included."""
        self._timeout_s = timeout_s
        self._on_gone = on_gone
        self._sessions = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Start the timeout: the worker can be reached now."""
        if not self._is_stopped:
            self._arm()

    def stop(self) -> None:
        """Cancel the timeout."""
        self._is_stopped = True
        self._disarm()

    @contextmanager
    def session(self) -> Iterator[None]:
        """Context for the time that a router's stream is open; no timeout runs meanwhile."""
        self._sessions += 1
        self._disarm()
        try:
            yield
        finally:
            self._sessions -= 1
            if not self._sessions:
                self.start()

    def _arm(self) -> None:
        self._alarm = asyncio.get_running_loop().call_later(self._timeout_s, self._ring)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _ring(self) -> None:
        self._on_gone(f"no router was connected for {self._timeout_s:g} s")
