"""Renders the timeline of a request as a text chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rich.table import Table
from rich.text import Text

Spans: TypeAlias = Sequence[Mapping[str, Any]]

_READ_STAGES: Final = 2
"""Stages of a read: it has no token."""
_STAGES: Final = (
    ("queue", "queue_s", "bright_black"),
    ("prefill", "prefill_s", "cyan"),
    ("reserve", "reserve_s", "yellow"),
    ("transfer", "transfer_s", "magenta"),
    ("first decode", "first_decode_s", "green"),
)


@dataclass(frozen=True, slots=True)
class _Bar:
    begin_s: float
    end_s: float
    color: str
    glyph: str = "█"


def waterfall_chart(timings: Mapping[str, Any], width: int = 52) -> Table:
    """One row per stage, from the request's arrival to its second token, or to the numbers of a read; `width`
    is the chart's width in cells.

    `timings` is what Baton sends for `"timings": true`: seconds a stage, and in disagg mode the spans of
    prefill chunks and of the pushes that carried their pages.
    """
    stages = _STAGES[:_READ_STAGES] if timings.get("read_s") else _STAGES
    total_s = sum(timings[key] for _, key, _ in stages)
    chunks: Spans = timings.get("chunks", ())
    pushes: Spans = timings.get("pushes", ())
    table = Table(show_edge=False, box=None, padding=(0, 1), caption_justify="left")
    table.add_column("stage")
    table.add_column(Text("0" + _duration(total_s).rjust(width - 1), style="bright_black"))
    table.add_column("time", justify="right")

    begin_s = 0.0
    for name, key, color in stages:
        end_s = begin_s + timings[key]
        table.add_row(name, _row([_Bar(begin_s, end_s, color)], total_s, width), _duration(timings[key]))
        begin_s = end_s
        if key == "prefill_s" and chunks:
            table.add_row("  chunks", _row(_alternating(chunks, "cyan"), total_s, width))
        if key == "prefill_s" and pushes:
            table.add_row("  KV pushes", _row(_alternating(pushes, "magenta"), total_s, width))
    table.caption = _summary(chunks, pushes)
    return table


def _summary(chunks: Spans, pushes: Spans) -> str | None:
    if not chunks:
        return None
    tokens = sum(chunk["num_tokens"] for chunk in chunks)
    text = f"{tokens:,} tokens computed in {len(chunks)} chunks"
    if sent := sum(push["bytes"] for push in pushes):
        computed_s = max(chunk["end_s"] for chunk in chunks)
        hidden = sum(push["bytes"] for push in pushes if push["end_s"] <= computed_s)
        text += f"; {sent / 1e6:,.0f} MB of KV sent, {hidden / sent:.0%} during prefill"
    return text


def _alternating(spans: Spans, color: str) -> list[_Bar]:
    """Neighbours get different glyphs, so that they can be distinguished without colors."""
    return [_Bar(span["begin_s"], span["end_s"], color, "█▓"[index % 2]) for index, span in enumerate(spans)]


def _row(bars: Sequence[_Bar], total_s: float, width: int) -> Text:
    """Later bars cover earlier ones; one too short to see is drawn as a line."""
    cells = [(" ", "")] * width
    scale = width / total_s if total_s else 0.0
    for bar in bars:
        first, last = round(bar.begin_s * scale), min(round(bar.end_s * scale), width)
        if first < last:
            cells[first:last] = [(bar.glyph, bar.color)] * (last - first)
        else:
            cells[min(first, width - 1)] = ("▏", bar.color)
    return Text.assemble(*cells)


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
