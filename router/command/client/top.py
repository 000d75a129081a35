"""`router top`: the live page for terminals."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from router.command.client.api import ApiError, Unreachable, add_api_arguments, api_of

_PATH = "/status"


def run(argv: Sequence[str]) -> int:
    """Run until ctrl-C; without a terminal, print once. Exit status: 1 if no router answers or it refuses."""
    arguments = make_parser().parse_args(argv)
    console = Console()
    try:
        api = api_of(arguments)
        path = _PATH if arguments.model is None else f"{_PATH}?{urlencode({'model': arguments.model})}"
        screen = top_screen(api.get(path))
        if arguments.once or not console.is_terminal:
            console.print(screen)
            return 0
        with Live(screen, console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(arguments.interval)
                live.update(top_screen(api.get(path)), refresh=True)
    except (ApiError, Unreachable, OSError, ValueError) as error:
        print(f"router top: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="router top",
        description="Monitor a running router: workers, KV pages, queue, latencies, last requests.",
    )
    add_api_arguments(parser, key="metrics key")
    parser.add_argument("--model", metavar="NAME", help="model to show (default: the router's first)")
    parser.add_argument("--once", action="store_true", help="print once and exit, as without a terminal")
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="refresh interval (default: %(default)s)",
    )
    return parser


_STATES: Final = (
    ("held", "blue", "█"),
    ("in_flight", "magenta", "▒"),
    ("cached", "cyan", "▓"),
    ("quarantined", "red", "!"),
    ("free", "bright_black", "·"),
)
_WORKER_STYLES: Final = {"ready": "green", "draining": "yellow", "stopped": "yellow"}
"""Styles of states that are no failure; stopped workers were drained."""
_STAGES: Final = (
    ("queue_s", "bright_black"),
    ("prefill_s", "cyan"),
    ("reserve_s", "yellow"),
    ("transfer_s", "magenta"),
    ("first_decode_s", "green"),
)
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH: Final = 14
_SHOWN_REQUESTS: Final = 10
_SHOWN_PAUSES: Final = 4
_BAR: Final = 8
_REQUEST_BAR: Final = 24
_ID: Final = 8
"""Last characters of a request's id: enough to find it among those shown."""


def top_screen(status: Mapping[str, Any]) -> RenderableType:
    """Figures, workers, links, pauses and the last requests, below each other."""
    parts: list[RenderableType] = [_head(status), _figures(status), Text(), _workers(status["workers"])]
    if status["links"]:
        parts += [Text(), _links(status["links"])]
    if status["pauses"]:
        parts += [Text(), _pauses(status["pauses"][:_SHOWN_PAUSES])]
    if status["ended"]:
        parts += [Text(), _requests(status["ended"][:_SHOWN_REQUESTS])]
    return Group(*parts)


def _head(status: Mapping[str, Any]) -> Text:
    model = status["model"]
    ready = sum(worker["state"] == "ready" for worker in status["workers"])
    return Text.assemble(
        (model["name"], "bold"),
        f"  {model['mode']}, context {model['max_model_len']:,}, up {_span(status['uptime_s'])}, "
        f"{ready} of {len(status['workers'])} workers ready",
    )


def _figures(status: Mapping[str, Any]) -> Table:
    requests, tokens = status["requests"], status["tokens"]
    waiting = requests["waiting"] + requests["held_back"]
    wait = f"wait about {_span(requests['predicted_wait_s'])}" if requests["predicted_wait_s"] else ""
    table = _table("", "", "", "p50", "p90", "p99")
    rows = (
        ("output", f"{_count(tokens['output_per_s'])} tokens/s", _spark(tokens["output_history"])),
        ("prompts", f"{_count(tokens['prompt_per_s'])} tokens/s", _spark(tokens["prompt_history"])),
        ("running", _requests_of(requests["running"]), f"{requests['ended_per_s']:.1f} ended/s"),
    )
    first = ("read", "read_s") if status["read_s"] and not status["ttft_s"] else ("TTFT", "ttft_s")
    spreads = (first, ("ITL", "itl_s"), ("request", "e2e_s"))
    for (name, value, more), (label, key) in zip(rows, spreads, strict=True):
        table.add_row(name, value, f"{more:<14} {label:>7}", *_levels(status[key]))
    if status["read_s"] and status["ttft_s"]:
        table.add_row("", "", f"{'':<14} {'read':>7}", *_levels(status["read_s"]))
    table.add_row(
        "waiting", _requests_of(waiting), f"{_count(requests['queued_tokens'])} prompt tokens ahead"
    )
    if wait:
        table.add_row("", "", wait)
    return table


def _levels(found: Mapping[str, float] | None) -> list[str]:
    return [_span((found or {}).get(level)) for level in ("p50", "p90", "p99")]


def _requests_of(number: int) -> str:
    return "1 request" if number == 1 else f"{number:,} requests"


def _workers(workers: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("worker", "state", "KV pages", "held", "cached", "running", "waiting", "in/s", "out/s")
    for worker in workers:
        style = _WORKER_STYLES.get(worker["state"], "red")
        pages = worker.get("pages")
        total = sum(pages.values()) if pages else 0
        held = _share(pages["held"] + pages["in_flight"], total) if pages else "–"
        cached = _share(pages["cached"], total) if pages else "–"
        table.add_row(
            worker["id"],
            Text(worker["state"], style=style),
            _pages(pages, total),
            held,
            cached,
            _count(worker.get("running")),
            _count(worker.get("waiting")),
            _count(worker.get("prompt_tokens_per_s")),
            _count(worker.get("output_tokens_per_s")),
        )
    return table


def _share(pages: int, total: int) -> str:
    return f"{pages / total:.0%}" if total else "–"


def _pages(pages: Mapping[str, int] | None, total: int) -> Text:
    bar = Text()
    if not pages or not total:
        return bar
    drawn = seen = 0
    for state, color, glyph in _STATES:
        seen += pages[state]
        upto = round(_BAR * seen / total)
        bar.append(glyph * (upto - drawn), style=color)
        drawn = upto
    return bar


def _links(links: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("KV from", "to", "now", "handoffs", "since the start")
    for link in links:
        table.add_row(
            link["from"],
            link["to"],
            f"{link['bytes_per_s'] / 1e6:,.1f} MB/s",
            f"{link['handoffs']:,}",
            f"{link['bytes'] / 1e6:,.0f} MB",
        )
    return table


def _pauses(pauses: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("pause", "of", "cause", "answers", "ago")
    for pause in pauses:
        table.add_row(
            _span(pause["seconds"]),
            pause["worker"],
            pause["cause"],
            str(pause["answers"]),
            _span(pause["ended_s_ago"]),
        )
    return table


def _requests(requests: Sequence[Mapping[str, Any]]) -> Table:
    longest = max(request["timings"]["e2e_s"] for request in requests) or 1.0
    table = _table("request", "ended", "tokens", "TTFT", "all", "stages, decode")
    for request in requests:
        timings = request["timings"]
        reads = timings["read_s"] > 0
        good = request["outcome"] in ("stop", "length")
        table.add_row(
            request["id"][-_ID:],
            # The first word of an error's code: the whole of deadline_exceeded cuts off the other columns.
            Text(request["outcome"].partition("_")[0], style="" if good else "red"),
            f"{request['prompt_tokens']:,} → {'read' if reads else format(request['output_tokens'], ',')}",
            _span(None if reads else timings["ttft_s"]),
            _span(timings["e2e_s"]),
            _stages(timings, longest),
        )
    return table


def _stages(timings: Mapping[str, float], longest: float) -> Text:
    bar, drawn, seen = Text(), 0, 0.0
    parts = [(timings[key], color, "█") for key, color in _STAGES]
    rest = timings["e2e_s"] - sum(length for length, _, _ in parts)
    for length, color, glyph in [*parts, (max(rest, 0.0), "green", "░")]:
        seen += length
        upto = min(round(_REQUEST_BAR * seen / longest), _REQUEST_BAR)
        bar.append(glyph * (upto - drawn), style=color)
        drawn = max(upto, drawn)
    return bar


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bright_black")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _spark(values: Sequence[float]) -> str:
    shown = values[-_SPARK_WIDTH:]
    top = max(shown, default=0.0) or 1.0
    return "".join(_SPARKS[round((len(_SPARKS) - 1) * value / top)] for value in shown)


def _count(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds >= 120:
        return f"{seconds / 60:,.0f} min"
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
