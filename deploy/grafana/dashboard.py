"""Writes baton.json, the Grafana dashboard, from a list of panels: `python deploy/grafana/dashboard.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("baton.json")
WIDTH, HEIGHT = 8, 8
PANELS_A_ROW = 24 // WIDTH
WINDOW = "[$__rate_interval]"


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    """Grafana's name: s, reqps, short, Bps, percentunit."""
    series: tuple[tuple[str, str], ...]
    """(expression, legend) each."""
    help: str = ""
    stacked: bool = False
    limit: float | None = None
    """Drawn as a line; docs/tuning.md and the alerts have the same."""


def quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """p50, p90 and p99 of a histogram; with `by`, p50 and p99 for each value of that label."""
    levels = (0.5, 0.99) if by else (0.5, 0.9, 0.99)
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (
            f"histogram_quantile({level}, sum by ({labels}) (rate({metric}_bucket{WINDOW})))",
            f"p{level * 100:g}{legend}",
        )
        for level in levels
    )


def rate(metric: str, by: str) -> tuple[tuple[str, str], ...]:
    return ((f"sum by ({by}) (rate({metric}{WINDOW}))", f"{{{{{by}}}}}"),)


ROWS = {
    "What clients see": (
        Panel("Time to first token", "s", quantiles("baton_ttft_seconds"), limit=1.0),
        Panel("Between two tokens", "s", quantiles("baton_itl_seconds"), limit=0.1),
        Panel("Whole answer", "s", quantiles("baton_e2e_seconds")),
        Panel("Requests, by how they ended", "reqps", rate("baton_requests_total", "outcome"), stacked=True),
        Panel(
            "Tokens",
            "short",
            (
                (f"sum(rate(baton_prompt_tokens_total{WINDOW}))", "prompt"),
                (f"sum(rate(baton_output_tokens_total{WINDOW}))", "output"),
            ),
            help="A second, counted when they come and go.",
        ),
        Panel(
            "Requests in work",
            "short",
            (
                ("sum(baton_router_running_requests)", "running"),
                ("sum(baton_router_held_back_requests)", "of those, held back for want of room"),
            ),
        ),
    ),
    "Where the time to the first tokens goes": (
        Panel(
            "Mean of each stage",
            "s",
            (
                (
                    f"sum by (stage) (rate(baton_stage_seconds_sum{WINDOW}))"
                    f" / sum by (stage) (rate(baton_stage_seconds_count{WINDOW}))",
                    "{{stage}}",
                ),
            ),
            help="The stages follow each other, from a request's arrival to its second token.",
            stacked=True,
        ),
        Panel("Wait at a worker", "s", quantiles("baton_worker_queue_seconds", "role")),
        Panel("Engine step", "s", quantiles("baton_step_seconds", "role")),
    ),
    "Workers": (
        Panel(
            "KV pages, by state",
            "short",
            (("sum by (role, state) (baton_kv_pages)", "{{role}} {{state}}"),),
            help="Their sum is constant. Quarantined: a peer may still write there.",
            stacked=True,
        ),
        Panel(
            "Running and waiting requests",
            "short",
            (
                ("sum by (worker) (baton_running_requests)", "{{worker}} running"),
                ("sum by (worker) (baton_waiting_requests)", "{{worker}} waiting"),
            ),
        ),
        Panel(
            "Prompt tokens from the prefix cache",
            "percentunit",
            (
                (
                    f"sum by (role) (rate(baton_cache_hit_tokens_total{WINDOW}))"
                    f" / (sum by (role) (rate(baton_cache_hit_tokens_total{WINDOW}))"
                    f" + sum by (role) (rate(baton_computed_prompt_tokens_total{WINDOW})))",
                    "{{role}}",
                ),
            ),
        ),
        Panel("Token usage", "percentunit", (("baton_token_usage", "{{worker}}"),), limit=0.95),
        Panel(
            "Running requests against their limit",
            "percentunit",
            (("baton_running_requests / baton_max_running_requests", "{{worker}}"),),
            limit=0.95,
        ),
        Panel("Prompt tokens of a step", "short", quantiles("baton_step_prompt_tokens", "role")),
        Panel("Decodes of a step", "short", quantiles("baton_step_decodes", "role")),
        Panel("Workers in service", "short", (("sum by (role) (baton_worker_up)", "{{role}}"),)),
        Panel("Preemptions", "short", rate("baton_preemptions_total", "worker"), limit=0.1),
        Panel("Retries", "reqps", rate("baton_request_retries_total", "failed_worker")),
    ),
    "Handoff of KV": (
        Panel("Sent", "Bps", rate("baton_transfer_bytes_total", "worker")),
        Panel(
            "Duration, and what the prefill did not hide of it",
            "s",
            (
                *((e, f"{legend} whole") for e, legend in quantiles("baton_transfer_seconds")[:1]),
                *((e, f"{legend} exposed") for e, legend in quantiles("baton_transfer_exposed_seconds")),
            ),
        ),
        Panel("Failures", "reqps", rate("baton_transfer_failures_total", "worker")),
    ),
}


def dashboard() -> dict[str, Any]:
    return {
        "uid": "baton",
        "title": "Baton",
        "tags": ["baton", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [{**panel, "id": number} for number, panel in enumerate(_panels(), start=1)],
    }


def _panels() -> Iterator[dict[str, Any]]:
    y = 0
    for title, panels in ROWS.items():
        yield {"type": "row", "title": title, "collapsed": False, "gridPos": _grid(0, y, 24, 1)}
        y += 1
        for index, panel in enumerate(panels):
            line, column = divmod(index, PANELS_A_ROW)
            yield _panel(panel, _grid(column * WIDTH, y + line * HEIGHT, WIDTH, HEIGHT))
        y += -(-len(panels) // PANELS_A_ROW) * HEIGHT


def _panel(panel: Panel, grid: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    drawing: dict[str, Any] = (
        {"fillOpacity": 30, "stacking": {"mode": "normal"}} if panel.stacked else {"fillOpacity": 0}
    )
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": drawing}
    if panel.limit is not None:
        drawing["thresholdsStyle"] = {"mode": "line"}
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.limit}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": source,
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": source}
            for index, (expression, legend) in enumerate(panel.series)
        ],
    }


def _grid(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


if __name__ == "__main__":
    TARGET.write_text(json.dumps(dashboard(), indent=2) + "\n")
