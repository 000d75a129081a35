"""Why requests wait, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

WaitMark: TypeAlias = tuple[float, ...]


class WaitReason(Enum):
    """What the request at the head of the queue lacked when a step was planned."""

    BUDGET = "budget"
    """Room in the step."""
    PAGES = "pages"
    SLOTS = "slots"
    """A place among the running requests."""
    POLICY = "policy"
    """Requests that came later were admitted before those that waited."""
    TRANSFER = "transfer"
    """KV that another worker computes."""
    ADAPTER = "adapter"
    """A slot for its adapter."""
    PROMOTION = "promotion"
    """KV that comes up from a tier."""


_REASONS = tuple(WaitReason)


class WaitClock:
    """Seconds for which the queue stood still, by reason; O(1) a step and O(reasons) a request.

    The reason is that of the queue's head; requests behind it wait for the same.
    """

    def __init__(self) -> None:
        self.reason: WaitReason | None = None
        """Since the last call of `planned`; None while nothing waits."""
        self._seconds = [0.0] * len(_REASONS)
        self._at = 0.0

    def planned(self, reason: WaitReason | None, now: float) -> None:
        """A step was planned, and requests that are still waiting do so for `reason`."""
        self.mark(now)
        self.reason = reason

    def mark(self, now: float) -> WaitMark:
        """The moment from which on a request waits."""
        if self.reason is not None:
            self._seconds[_REASONS.index(self.reason)] += max(0.0, now - self._at)
        self._at = now
        return tuple(self._seconds)

    def since(self, mark: WaitMark, now: float) -> Mapping[WaitReason, float]:
        """Seconds waited since `mark`, by reason; only reasons that occurred."""
        seconds = self.mark(now)
        waited = zip(_REASONS, seconds, mark, strict=True)
        return {reason: end - begin for reason, end, begin in waited if end > begin}
