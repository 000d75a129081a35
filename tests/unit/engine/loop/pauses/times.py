"""A clock that passes when a test says so."""

from __future__ import annotations

from dataclasses import dataclass

from engine.loop.pauses.laps import Laps


@dataclass
class Times:
    now: float = 100.0

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def laps(self) -> Laps:
        return Laps(lambda: self.now)
