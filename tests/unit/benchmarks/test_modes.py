"""The sweep of rates, drawn and told apart by mode."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from benchmarks.lib.client import Record
from benchmarks.lib.outcomes import Point
from benchmarks.lib.plots import plot_modes
from benchmarks.lib.report import Objective, summarize
from benchmarks.modes import rates_table


def point(mode: str, rate: float, ttft: float) -> Point:
    record = Record(sent=0.0, arrivals=[ttft, ttft + 0.1], ended=ttft + 0.1, output_tokens=2)
    return Point(mode, rate, summarize([record], Objective(ttft_s=1.0)))


POINTS = [
    point("mixed", 1.0, 0.5),
    point("mixed", 2.0, 3.0),
    point("disagg", 1.0, 0.25),
    point("disagg", 2.0, 0.75),
]


def test_the_table_puts_both_modes_side_by_side_at_each_rate() -> None:
    text = io.StringIO()
    Console(file=text, width=160).print(rates_table(POINTS, "a title"))
    rows = [line.split() for line in text.getvalue().splitlines() if "mixed" in line or "disagg" in line]
    assert [(row[0], row[2]) for row in rows] == [
        ("1", "mixed"),
        ("1", "disagg"),
        ("2", "mixed"),
        ("2", "disagg"),
    ]
    assert ["100%" in row for row in rows] == [True, True, False, True]


def test_the_plot_is_written(tmp_path: Path) -> None:
    path = tmp_path / "modes.png"
    plot_modes(POINTS, "a title", path)
    assert path.stat().st_size > 10_000
