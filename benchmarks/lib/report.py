"""Computes the metrics of a run from its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import numpy as np
from rich.table import Table

from benchmarks.lib.load.client import Record
from simulator.objective import Objective

__all__ = ["Objective", "Percentiles", "Summary", "summarize", "summary_table"]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A distribution in five numbers; all 0 where nothing was measured."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles:
        array = np.fromiter(values, dtype=np.float64)
        if not array.size:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        p50, p90, p99 = (float(p) for p in np.percentile(array, [50, 90, 99]))
        return cls(float(array.mean()), p50, p90, p99, float(array.max()))


ANYTHING: Final = Objective()
_SPREADS: Final = ("ttft", "itl", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Summary:
    """One run. Times in seconds, rates a second."""

    succeeded: int
    failed: int
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    ttft: Percentiles
    itl: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    good: int
    """Answers that met the objective."""

    @property
    def request_rate(self) -> float:
        return self._a_second(self.succeeded)

    @property
    def output_rate(self) -> float:
        """Generated tokens a second."""
        return self._a_second(self.output_tokens)

    @property
    def total_rate(self) -> float:
        """Prompt and generated tokens a second."""
        return self._a_second(self.prompt_tokens + self.output_tokens)

    @property
    def goodput(self) -> float:
        """Answers that met the objective, a second."""
        return self._a_second(self.good)

    def as_json(self) -> dict[str, Any]:
        rates = ("request_rate", "output_rate", "total_rate", "goodput")
        return asdict(self) | {rate: getattr(self, rate) for rate in rates}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Summary:
        """What `as_json` wrote. Raises KeyError for a file that another version wrote."""
        values: dict[str, Any] = {field.name: content[field.name] for field in fields(cls)}
        return cls(**values | {name: Percentiles(**values[name]) for name in _SPREADS})

    def _a_second(self, count: int) -> float:
        return count / self.duration_s if self.duration_s else 0.0


def summarize(records: Sequence[Record], objective: Objective = ANYTHING) -> Summary:
    """Answers that failed count in no latency; the run lasts from the first send to the last end."""
    answered = [record for record in records if record.error is None]
    duration = max(r.ended for r in records) - min(r.sent for r in records) if records else 0.0
    return Summary(
        succeeded=len(answered),
        failed=len(records) - len(answered),
        duration_s=duration,
        prompt_tokens=sum(record.prompt_tokens for record in answered),
        output_tokens=sum(record.output_tokens for record in answered),
        ttft=Percentiles.of(record.ttft for record in answered),
        itl=Percentiles.of(itl for record in answered for itl in record.itls),
        tpot=Percentiles.of(record.tpot for record in answered if record.output_tokens > 1),
        e2e=Percentiles.of(record.e2e for record in answered),
        good=sum(_meets(record, objective) for record in answered),
    )


def _meets(record: Record, objective: Objective) -> bool:
    return objective.is_met(ttft=record.ttft, tpot=record.tpot, longest_pause=max(record.itls, default=0.0))


def figures_table(title: str, first: str, *columns: str) -> Table:
    """A table without rows. The column `first` is for text, the others are for figures."""
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column(first, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def summary_table(summary: Summary, title: str) -> Table:
    """Rates above, latencies in milliseconds below."""
    table = figures_table(title, "", "mean", "p50", "p90", "p99", "max")
    latencies = {"TTFT": summary.ttft, "ITL": summary.itl, "TPOT": summary.tpot, "E2E": summary.e2e}
    for name, spread in latencies.items():
        values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
        table.add_row(f"{name} (ms)", *(f"{value * 1e3:,.1f}" for value in values))
    table.caption_justify = "left"
    table.caption = (
        f"{summary.succeeded} answered, {summary.failed} failed in {summary.duration_s:.1f} s: "
        f"{summary.request_rate:.2f} requests/s, {summary.output_rate:,.1f} output tokens/s, "
        f"{summary.total_rate:,.1f} total tokens/s, goodput {summary.goodput:.2f} requests/s"
    )
    return table
