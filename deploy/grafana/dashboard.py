"""Writes the Grafana dashboards from the panels of `panels.py`: `python deploy/grafana/dashboard.py`.

Every expression is restricted to the variables at the top of a dashboard, and every sum is by model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from panels import DASHBOARDS, Panel

FOLDER = Path(__file__).parent
WIDTH, HEIGHT = 8, 8
PANELS_A_ROW = 24 // WIDTH

VARIABLES = {"model": "model_name", "role": "role"}
"""Label of each variable of which several values, or all, may be chosen."""
CLUSTER = 'baton_cluster=~"$cluster"'
"""One cluster at a time. Prometheus' configuration gives the label; without it the variable is empty."""
_OF_ROUTER = re.compile(
    r"baton_(router|cluster|link|handoff|stage|moved|requests?|pauses?|no_first_token|read|ttft|itl|tpot|e2e|prompt|output)_"
)
"""Metrics of the router about no role of worker."""
_METRIC = re.compile(r"\b((?:baton|process)_\w+)(?:\{([^}]*)\})?")
_AGGREGATION = re.compile(r"\b(sum|max)(?: by \(([^()]*)\) )?\(")


def selected(expression: str) -> str:
    """`expression` about what the variables choose, each sum by model.

    The process of a router has no model: several models share it. Its other metrics have no role.
    """
    by_model = _AGGREGATION.sub(_by_model, expression)
    return _METRIC.sub(_restricted, by_model)


def _by_model(found: re.Match[str]) -> str:
    labels = f"model_name, {found[2]}" if found[2] else "model_name"
    return f"{found[1]} by ({labels}) ("


def _restricted(found: re.Match[str]) -> str:
    metric, given = found[1], found[2] or ""
    selectors = [given] if given else []
    selectors.append(CLUSTER)
    if 'role="router"' not in given:
        selectors.append('model_name=~"$model"')
        if not _OF_ROUTER.match(metric):
            selectors.append('role=~"$role"')
    return f"{metric}{{{', '.join(selectors)}}}"


def variables() -> list[dict[str, Any]]:
    known = "baton_worker_up"
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    cluster = _variable("cluster", f"label_values({known}, baton_cluster)")
    several = {
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
    chosen = [
        _variable(name, f"label_values({known}{{{CLUSTER}}}, {label})") | several
        for name, label in VARIABLES.items()
    ]
    return [source, cluster, *chosen]


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": query, "refId": name},
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
    }


def dashboard(name: str) -> dict[str, Any]:
    return {
        "uid": f"baton-{name}",
        "title": f"Baton {name}",
        "tags": ["baton", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": variables()},
        "links": [{"type": "dashboards", "title": "Baton", "tags": ["baton"], "asDropdown": True}],
        "panels": [
            {**panel, "id": number} for number, panel in enumerate(_panels(DASHBOARDS[name]), start=1)
        ],
    }


def _panels(rows: dict[str, tuple[Panel, ...]]) -> Iterator[dict[str, Any]]:
    y = 0
    for title, panels in rows.items():
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
            {
                "refId": chr(ord("A") + index),
                "expr": selected(expression),
                "legendFormat": f"{{{{model_name}}}} {legend}",
                "datasource": source,
            }
            for index, (expression, legend) in enumerate(panel.series)
        ],
    }


def _grid(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


if __name__ == "__main__":
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(json.dumps(dashboard(name), indent=2) + "\n")
