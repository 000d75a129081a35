"""What kept the engine thread off its core, taken out of the parts in which it happened. Arithmetic alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from engine.loop.pauses.causes import Cause
from engine.loop.pauses.laps import Lapped, Seconds

_PYTHON: Final = frozenset({Cause.COMMANDS, Cause.PLAN, Cause.BATCH, Cause.RESULTS, Cause.SEND})
"""Parts that call nothing that blocks: off its core, the thread waits for the interpreter lock."""
_KNOWN: Final = frozenset({Cause.GC, Cause.COMPILE})
"""Whatever else happens in them is their fault."""


@dataclass(frozen=True, slots=True)
class OffCPU:
    """What the operating system and other threads say about the same time. All in seconds."""

    cpu_s: float
    """CPU time of the thread."""
    others_cpu_s: float = 0.0
    """CPU time of the other threads of the process."""
    queued_s: float = 0.0
    """The thread was ready to run, and waited for a core."""
    stopped_s: float = 0.0
    """No thread of the process ran."""
    held_s: float = 0.0
    """A thread was ready to run Python, while another one held the interpreter lock."""


def attributed(lapped: Lapped, off: OffCPU) -> Seconds:
    """`lapped.parts`, of which CPU, STOPPED and LOCK are parts of their own. The sum stays the same."""
    moving = _Moving(lapped, off.cpu_s)
    moving.take(Cause.CPU, off.queued_s, moving.parts)
    moving.take(Cause.STOPPED, off.stopped_s, moving.parts)
    # If the engine thread ran Python meanwhile, it was the one that held the lock.
    python_s = min(off.cpu_s, sum(lapped.parts.get(part, 0.0) for part in _PYTHON))
    held_s = moving.take(Cause.LOCK, off.held_s - python_s, {Cause.DEVICE, *_PYTHON})
    moving.take(Cause.LOCK, off.others_cpu_s - held_s, _PYTHON)  # shorter waits
    return moving.parts


class _Moving:
    """How long the thread was off its core in each part is not measured. A pause is in one part, and that is
    the longest of them."""

    def __init__(self, lapped: Lapped, cpu_s: float) -> None:
        self.parts = dict(lapped.parts)
        self._waited_s = lapped.waited_s
        self._off_s = max(lapped.seconds - lapped.waited_s - cpu_s, 0.0)
        """Off its core, without waiting for the device."""

    def take(self, cause: Cause, seconds: float, sources: Iterable[Cause]) -> float:
        """Up to `seconds`, from the longest of `sources` first; returns how many there were."""
        left = seconds
        there = set(sources) & self.parts.keys() - _KNOWN
        for part in sorted(there, key=lambda part: (-self._available(part), -self.parts[part])):
            moved = min(left, self._available(part))
            if moved <= 0:
                break
            waited = min(moved, self._waited_s) if part is Cause.DEVICE else 0.0
            self._waited_s -= waited
            self._off_s -= moved - waited
            left -= moved
            self.parts[part] -= moved
            self.parts[cause] = self.parts.get(cause, 0.0) + moved
        return seconds - left

    def _available(self, part: Cause) -> float:
        waited = self._waited_s if part is Cause.DEVICE else 0.0
        return min(self.parts[part], waited + self._off_s)
