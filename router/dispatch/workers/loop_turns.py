"""An event loop that knows how long its turns take."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_LONG_S: Final = 0.01
"""Longer turns are kept."""
_KEPT: Final = 32


class LoopTurns:
    """Times in which the loop ran callbacks, or was not woken although a timer was due. O(1) a turn."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._long: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """(end, seconds) of the latest long turns."""

    def waits(self) -> None:
        """The callbacks of a turn have run."""
        self._note(self._clock(), self._began)

    def woken(self, due: float) -> None:
        """The next turn begins; `due`: when a timer was to wake the loop at the latest."""
        self._began = self._clock()
        self._note(self._began, due)

    def longest_since(self, began: float) -> float:
        """Seconds of the longest turn that ended after `began`, the current one included."""
        found = [seconds for end, seconds in self._long if end > began]
        return max([self._clock() - self._began, *found])

    def _note(self, end: float, began: float) -> None:
        if end - began > _LONG_S:
            self._long.append((end, end - began))


class _TimedSelector(selectors.DefaultSelector):
    def __init__(self, turns: LoopTurns) -> None:
        super().__init__()
        self._turns = turns

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns.waits()
        due = float("inf") if timeout is None else time.monotonic() + max(timeout, 0.0)
        found = super().select(timeout)
        self._turns.woken(due)
        return found


class TimedLoop(asyncio.SelectorEventLoop):
    """The router's event loop: asyncio's own, with `turns`."""

    def __init__(self) -> None:
        self.turns: Final = LoopTurns()
        super().__init__(_TimedSelector(self.turns))


def busy_since(began: float) -> float:
    """`longest_since` of the running loop; 0 for a loop of another kind, such as that of Ray Serve."""
    loop = asyncio.get_running_loop()
    return loop.turns.longest_since(began) if isinstance(loop, TimedLoop) else 0.0
