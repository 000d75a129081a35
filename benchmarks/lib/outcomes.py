"""The measurements of a benchmark at one setting, for its table and its plot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.lib.report import Summary


@dataclass(frozen=True, slots=True)
class Run:
    """One mode at one rate, with the requests of one seed."""

    mode: str
    rate: float
    """Requests a second that the workload was drawn for."""
    seed: int
    offered: float
    """Requests a second that were sent: a draw of a Poisson process has another rate than its mean."""
    summary: Summary

    @property
    def share_good(self) -> float:
        """Share of all requests, failed ones too."""
        return self.summary.good / max(self.summary.succeeded + self.summary.failed, 1)

    def as_json(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "rate": self.rate,
            "seed": self.seed,
            "offered": self.offered,
            "summary": self.summary.as_json(),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Run:
        """Raises KeyError for a file that another version wrote."""
        return cls(
            mode=content["mode"],
            rate=content["rate"],
            seed=content["seed"],
            offered=content["offered"],
            summary=Summary.from_json(content["summary"]),
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over several seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(fmean(values), min(values), max(values))

    def text(self, form: Callable[[float], str]) -> str:
        """The mean, and in brackets the lowest and the highest if they differ as written."""
        low, high = form(self.low), form(self.high)
        return form(self.mean) if low == high else f"{form(self.mean)} ({low}–{high})"


@dataclass(frozen=True, slots=True)
class Point:
    """One mode at one rate, with every seed."""

    mode: str
    rate: float
    runs: tuple[Run, ...]

    def spread(self, figure: Callable[[Run], float]) -> Spread:
        return Spread.of([figure(run) for run in self.runs])


def points_of(runs: Iterable[Run]) -> list[Point]:
    """Runs by mode and rate, in the order in which modes came, by rate."""
    groups: dict[tuple[str, float], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.mode, run.rate), []).append(run)
    modes = list(dict.fromkeys(mode for mode, _ in groups))
    order = sorted(groups, key=lambda key: (modes.index(key[0]), key[1]))
    return [Point(mode, rate, tuple(groups[mode, rate])) for mode, rate in order]


def arrival_rate(sent: Sequence[float]) -> float:
    """Requests a second: those after the first, over the time in which they were sent; 0 for a single one."""
    span = max(sent) - min(sent) if sent else 0.0
    return (len(sent) - 1) / span if span else 0.0
