"""Ports from a fixed range, for networks whose firewalls are closed otherwise."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

LEAST_PORTS: Final = 8
"""Fewest ports of a range: one worker opens three, and UCX one for each network interface."""
_UNPRIVILEGED: Final = 1024
_LAST: Final = 65535


class NoPortLeft(OSError):
    """Every port of the range is taken on this address."""


@dataclass(frozen=True, slots=True)
class PortRange:
    low: int
    high: int
    """The last one, included."""

    @classmethod
    def parse(cls, text: str) -> PortRange:
        """From `LOW-HIGH`. Raises ValueError, with what to write instead."""
        low, _, high = text.partition("-")
        if not (low.isdecimal() and high.isdecimal()):
            raise ValueError(f"{text} is not LOW-HIGH; try 11000-11099")
        if not _UNPRIVILEGED <= int(low) <= int(high) <= _LAST:
            raise ValueError(f"{text}: use ports from {_UNPRIVILEGED} to {_LAST}, the lower one first")
        if int(high) - int(low) + 1 < LEAST_PORTS:
            raise ValueError(f"{text}: use {LEAST_PORTS} ports or more for each worker of a node")
        return cls(int(low), int(high))

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"

    def halves(self) -> tuple[PortRange, PortRange]:
        middle = (self.low + self.high) // 2
        return PortRange(self.low, middle), PortRange(middle + 1, self.high)


def bind_within(ports: PortRange | None, bind: Callable[[int], T]) -> T:
    """What `bind(port)` returns for the first port that is free; for port 0 without a range.

    Several processes may look at once: a port counts as taken when binding it fails. Raises NoPortLeft.
    """
    if ports is None:
        return bind(0)
    for port in ports:
        try:
            return bind(port)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, None):
                raise
    raise NoPortLeft(f"no port of {ports} is free; give --worker-ports a larger range")
