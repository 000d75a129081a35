"""What a request waits for on each worker before it is computed with its adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_LATENCY_S: Final = 0.01
"""Time to load an adapter of no bytes."""
_BYTES_PER_S: Final = 1e9
"""Assumed until loads have shown how fast they are."""
_FADING: Final = 0.8
"""Weight of a load relative to the next one."""


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """Where an adapter is on a worker. The default: in a slot of the device."""

    load_s: float = 0.0
    """Until it is in host memory."""
    waits_for_slot: bool = False
    """Whether requests of other adapters use all slots."""


class LoadTimes:
    """Predicts how long a worker loads an adapter, by its bytes. Every method costs O(1)."""

    def __init__(self) -> None:
        self._bytes = self._seconds = 0.0
        """Sums over the loads so far, those of long ago fading."""

    def observe(self, num_bytes: int, seconds: float) -> None:
        if num_bytes > 0 and seconds > 0:
            self._bytes = _FADING * self._bytes + num_bytes
            self._seconds = _FADING * self._seconds + seconds

    def seconds(self, num_bytes: int) -> float:
        rate = self._bytes / self._seconds if self._seconds else _BYTES_PER_S
        return _LATENCY_S + num_bytes / rate
