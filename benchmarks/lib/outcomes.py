"""What a benchmark measured at one setting: what its table and its plot are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from benchmarks.lib.client import Record
from benchmarks.lib.report import Percentiles, Summary

__all__ = ["Interruption", "Point"]


@dataclass(frozen=True, slots=True)
class Point:
    """One mode at one rate."""

    mode: str
    rate: float
    """Requests a second that were sent."""
    summary: Summary

    def as_json(self) -> dict[str, Any]:
        return {"mode": self.mode, "rate": self.rate, "summary": self.summary.as_json()}


@dataclass(frozen=True, slots=True)
class Interruption:
    """Running requests and the long prompt that arrived among them, as the clients saw them."""

    chunk: int | None
    """Tokens a step may compute; None: chunking off."""
    decodes: Sequence[Record]
    long: Record

    @property
    def name(self) -> str:
        return f"chunks of {self.chunk}" if self.chunk else "chunking off"

    @property
    def itl(self) -> Percentiles:
        """Of the running answers, from the long prompt's arrival on."""
        return Percentiles.of(
            after - before
            for record in self.decodes
            for before, after in pairwise(record.arrivals)
            if after > self.long.sent
        )

    def as_json(self) -> dict[str, Any]:
        return {"chunk": self.chunk, "itl": asdict(self.itl), "long_ttft": self.long.ttft}
