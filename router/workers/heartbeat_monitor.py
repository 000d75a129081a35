"""When a worker that says nothing is late, and when it is lost. Takes durations; has no clock of its own.

A busy machine, or a thread that holds the interpreter's lock, can keep a healthy worker from its heartbeats
for a second or more. To give it up costs all its streams a second prefill; to keep it costs new requests
nothing, as they go elsewhere. So silence is answered in two steps.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["HeartbeatMonitor", "Liveness"]


class Liveness(Enum):
    GOOD = "good"
    LATE = "late"
    """It gets nothing new and is probed; its streams stay."""
    LOST = "lost"
    """Its streams go on elsewhere."""


class HeartbeatMonitor:
    """Of one worker's stream."""

    def __init__(self, timeout_s: float, grace_s: float) -> None:
        """Late after `timeout_s` without a message, lost `grace_s` later."""
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._silent_s = 0.0
        self.has_answered = False
        """A probe, since the last message."""

    @property
    def liveness(self) -> Liveness:
        if self._silent_s < self._timeout_s:
            return Liveness.GOOD
        return Liveness.LATE if self._silent_s < self._timeout_s + self._grace_s else Liveness.LOST

    def heard(self) -> None:
        """A message came over the stream."""
        self._silent_s, self.has_answered = 0.0, False

    def answered(self) -> None:
        """The worker lives: a probe came back. That counts once until the stream itself says something.

        A process that answers while its stream stays silent for ever is given up after twice the time.
        """
        if not self.has_answered:
            self._silent_s, self.has_answered = 0.0, True

    def passed(self, seconds: float) -> Liveness:
        """So much time without a message."""
        self._silent_s += seconds
        return self.liveness
