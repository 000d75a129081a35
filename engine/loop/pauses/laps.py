"""Divides the time of the engine thread between causes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.loop.pauses.causes import Cause

Clock: TypeAlias = Callable[[], float]
Seconds: TypeAlias = dict[Cause, float]


@dataclass(frozen=True, slots=True)
class Lapped:
    """What the thread did between two calls of `Laps.take`."""

    began: float
    seconds: float
    parts: Seconds
    """They add up to `seconds`."""
    waited_s: float
    """Part in which the thread waited for the device: all of the part DEVICE."""


class Laps:
    """Belongs to one thread. A lap costs a reading of the clock and of each interruption."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._interruptions: Sequence[tuple[Cause, Clock]] = ()
        self.restart()

    def watch(self, interruptions: Sequence[tuple[Cause, Clock]]) -> None:
        """Take these causes out of the parts in which they occur. Each comes with a function of its seconds
        since some time in the past."""
        self._interruptions = interruptions
        self.restart()

    def restart(self) -> None:
        """Drop what has passed, as after a time without work."""
        self._began = self._at = self._clock()
        self._known = [total() for _, total in self._interruptions]
        self._parts: Seconds = {}
        self._waited_s = 0.0

    def lap(self, part: Cause) -> float:
        """The time since the last call belongs to `part`, without interruptions. Returns it."""
        now, parts, known = self._clock(), self._parts, self._known
        passed = now - self._at
        self._at = now
        for place, (cause, total) in enumerate(self._interruptions):
            if (seconds := total()) != known[place]:
                lost = min(seconds - known[place], passed)
                known[place] = seconds
                parts[cause] = parts.get(cause, 0.0) + lost
                passed -= lost
        parts[part] = parts.get(part, 0.0) + passed
        return passed

    def waited(self) -> None:
        """The time since the last call was spent waiting for the device."""
        self._waited_s += self.lap(Cause.DEVICE)

    def take(self) -> Lapped:
        """What has passed until the last lap since the last call."""
        lapped = Lapped(self._began, self._at - self._began, self._parts, self._waited_s)
        self._began, self._parts, self._waited_s = self._at, {}, 0.0
        return lapped
