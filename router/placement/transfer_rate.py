"""Bandwidth of links between workers, measured from handoffs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from router.placement.view import Link, WorkerId

_FADING: Final = 0.9
"""Weight of a handoff relative to the next one."""
_TELLING_BYTES: Final = 16_000_000
"""The rate of smaller handoffs is dominated by latency, not by bandwidth."""


class _Rate:
    """Decaying sums of bytes and seconds of handoffs."""

    def __init__(self) -> None:
        self._bytes = self._seconds = 0.0

    def observe(self, num_bytes: float, seconds: float) -> None:
        self._bytes = _FADING * self._bytes + num_bytes
        self._seconds = _FADING * self._seconds + seconds

    @property
    def bytes_per_s(self) -> float:
        return self._bytes / self._seconds


class TransferRates:
    """Links with measured bandwidth. Every method costs O(1), except `forget`: O(links)."""

    def __init__(self, prior: Link) -> None:
        """`prior`: assumed before anything is measured; its latency is kept."""
        self.link = prior
        """The link of pairs without measured handoffs."""
        self.links: dict[tuple[WorkerId, WorkerId], Link] = {}
        self._prior = prior
        self._all = _Rate()
        self._rates: dict[tuple[WorkerId, WorkerId], _Rate] = {}

    def observe(self, source: WorkerId, destination: WorkerId, num_bytes: int, seconds: float) -> None:
        """Writes of `num_bytes` were in progress for `seconds`."""
        if num_bytes < _TELLING_BYTES or seconds <= 0:
            return
        pair = source, destination
        rate = self._rates.setdefault(pair, _Rate())
        for known in (self._all, rate):
            known.observe(num_bytes, seconds)
        self.link = replace(self._prior, bytes_per_s=self._all.bytes_per_s)
        self.links[pair] = replace(self._prior, bytes_per_s=rate.bytes_per_s)

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone."""
        for pair in [pair for pair in self._rates if worker in pair]:
            del self._rates[pair], self.links[pair]
