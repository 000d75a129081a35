"""A thread that notes when it runs late: the process was stopped, or the interpreter lock was held.

The engine thread cannot tell a device that takes long from a process that does not run: it waits in both.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

_PERIOD_S: Final = 0.02
_LATE_S: Final = 0.01
"""Later beats than this are kept."""
_RAN: Final = 0.25
"""Part of a core that a process uses at least while one of its threads holds the interpreter lock, even on
a machine with more to do."""
_KEPT: Final = 16


class _Beat(NamedTuple):
    at: float
    cpu_s: float
    """CPU time of the process."""


class Late(NamedTuple):
    """Seconds of a time in which the pulse did not beat although it should have."""

    stopped_s: float = 0.0
    """The process used next to no CPU meanwhile."""
    held_s: float = 0.0
    """Its threads ran, and one of them held the interpreter lock."""


class Pulse:
    """Beats 50 times a second while `beating`; it costs a few tenths of a percent of a core then."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._beats = threading.Event()
        self._ended = False
        self._last = _Beat(0.0, 0.0)
        self._late: deque[tuple[float, Late]] = deque(maxlen=_KEPT)
        """With the time of the beat that was late."""
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended = True
        self._beats.set()
        self._thread.join()

    def beat(self, beating: bool) -> None:
        """Begin to beat, or rest. O(1)."""
        if beating == self._beats.is_set():
            return
        if beating:
            self._last = _Beat(self._clock(), self._cpu_clock())
            self._beats.set()
        else:
            self._beats.clear()

    def late_since(self, began: float) -> Late:
        """In the time from `began` until now. The beat that is due now counts, too."""
        now = _Beat(self._clock(), self._cpu_clock())
        known = [late for at, late in list(self._late) if at > began]
        if self._beats.is_set():
            known.append(self._lateness(self._last, now))
        longest = now.at - began
        return Late(*(min(sum(part), longest) for part in zip(*known, strict=True))) if known else Late()

    def _run(self) -> None:
        while self._beats.wait() and not self._ended:
            time.sleep(_PERIOD_S)
            now, last = _Beat(self._clock(), self._cpu_clock()), self._last
            if (late := self._lateness(last, now)) != Late():
                self._late.append((now.at, late))
            self._last = now

    def _lateness(self, last: _Beat, now: _Beat) -> Late:
        passed, busy = now.at - last.at, now.cpu_s - last.cpu_s
        late = passed - _PERIOD_S
        if late < _LATE_S:
            return Late()
        return Late(stopped_s=late) if busy < _RAN * passed else Late(held_s=late)
