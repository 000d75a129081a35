"""Decides how many workers of a role a cluster should have. Pure: no clock, and no state but its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from router.config.flags.text_settings import Bounds

_LOW: Final = 0.7
"""Pressure that the remaining workers of a smaller cluster may have."""
_STEP: Final = 2.0
"""Largest factor by which the number grows at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """The load of the workers of a role relative to what they are to bear; 1: the most."""

    queue: float = 0.0
    """Estimated queue time of a new prompt, by the TTFT target."""
    room: float = 0.0
    """Share of KV or of slots in use, by the share above which requests soon wait."""
    ttft: float = 0.0
    """Recent TTFT by its target."""
    itl: float = 0.0
    """Recent inter-token latency by its target. A scheduler that fills steps up to the target keeps it near
    1, so it never keeps a worker that nothing else needs."""
    requests: int = 0
    """Running and waiting."""

    @property
    def highest(self) -> tuple[str, float]:
        """Name and value of the strongest reason for more workers."""
        values = {"queue time": self.queue, "KV": self.room, "TTFT": self.ttft, "ITL": self.itl}
        return max(values.items(), key=lambda item: item[1])


@dataclass(frozen=True, slots=True)
class Decision:
    number: int
    why: str


class ScalingPolicy:
    """For one role.

    Grows at once, by at most double, when a pressure exceeds 1 and all workers are ready: those that still
    load may be enough. Shrinks by one worker when the others would have had a low pressure for a cooldown,
    to zero only without any request. Grows from zero with the first request.
    """

    def __init__(self, bounds: Bounds, cooldown_s: float) -> None:
        self._bounds = bounds
        self._cooldown_s = cooldown_s
        self._calm_since: float | None = None
        """Since when there could have been a worker less; None: not now."""

    def decide(self, pressure: Pressure, desired: int, ready: int, now: float) -> Decision | None:
        """A number other than `desired`, of which `ready` are in service; None: it is right. `now` in s."""
        decision = self._decide(pressure, desired, ready)
        if decision is not None and decision.number < desired and self._is_within_bounds(desired):
            self._calm_since = now if self._calm_since is None else self._calm_since
            if now - self._calm_since < self._cooldown_s:
                return None
        self._calm_since = None
        return decision

    def _decide(self, pressure: Pressure, desired: int, ready: int) -> Decision | None:
        least, most = self._bounds.least, self._bounds.most
        if not self._is_within_bounds(desired):
            return Decision(min(max(desired, least), most), f"--autoscale {least}:{most}")
        if desired == 0:
            return Decision(1, "a request waits") if pressure.requests else None
        if ready < desired:
            return None
        reason, value = pressure.highest
        if value > 1.0:
            # Latencies do not shrink in proportion to workers, queues and KV do.
            share = max(pressure.queue, pressure.room)
            wanted = max(math.ceil(desired * min(share, _STEP)), desired + 1)
            number = min(wanted, most)
            return Decision(number, f"{reason} at {value:.0%} of its limit") if number > desired else None
        if desired > least and self._suffices(desired - 1, desired, pressure):
            return Decision(desired - 1, f"the load needs {desired - 1}")
        return None

    def _suffices(self, number: int, desired: int, pressure: Pressure) -> bool:
        if number == 0:
            return not pressure.requests
        return max(pressure.queue, pressure.room, pressure.ttft) * desired / number < _LOW

    def _is_within_bounds(self, number: int) -> bool:
        return self._bounds.least <= number <= self._bounds.most
