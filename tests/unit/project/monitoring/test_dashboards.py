"""The dashboards of deploy/grafana draw metrics that exist, of the cluster, models and roles chosen."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.metric_export import VLLM
from router.dispatch.metrics.instruments import Instruments
from router.dispatch.metrics.known_workers import KnownWorkers
from router.dispatch.metrics.router_metrics import RouterMetrics
from tests.unit.project.monitoring.metric_names import (
    exported_metrics,
    metrics_in,
    names_in,
    worker_registry,
)

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))


def panels(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())["panels"]
    return found


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_every_panel_of_a_dashboard_draws_metrics_that_exist(file: Path) -> None:
    expressions = [target["expr"] for panel in panels(file) for target in panel.get("targets", ())]
    assert len(expressions) > 8
    unknown = {name for expression in expressions for name in metrics_in(expression)} - exported_metrics()
    assert not unknown


def test_the_dashboards_are_those_that_their_script_writes(tmp_path: Path) -> None:
    for module in (DEPLOY / "grafana").glob("*.py"):
        shutil.copy(module, tmp_path)
    script = tmp_path / "dashboard.py"
    subprocess.run([sys.executable, script], check=True)
    written = {file.name: file.read_text() for file in tmp_path.glob("*.json")}
    assert written == {file.name: file.read_text() for file in DASHBOARDS}


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_panels_do_not_overlap(file: Path) -> None:
    cells = [
        (x, y)
        for panel in panels(file)
        for grid in (panel["gridPos"],)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells))


def expressions(file: Path) -> list[str]:
    return [target["expr"] for panel in panels(file) for target in panel.get("targets", ())]


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_every_sum_is_by_model_and_every_metric_is_of_one_cluster(file: Path) -> None:
    for expression in expressions(file):
        for operator, labels in re.findall(r"\b(sum|min|max|avg|count)\b(?: by \(([^)]*)\))?", expression):
            assert "model_name" in labels.split(", "), f"{operator} in {expression}"
        metrics = re.findall(r"\b(?:baton|process)_\w+(?=[{ )[]|$)(\{[^}]*\})?", expression)
        assert metrics
        assert all('baton_cluster=~"$cluster"' in selectors for selectors in metrics), expression


def test_variables_restrict_what_has_their_label() -> None:
    workers = Instruments()
    KnownWorkers(workers)
    by_role = names_in(workers.registry)
    of_router = names_in(RouterMetrics().registry) - by_role
    seen = set()
    for expression in (each for file in DASHBOARDS for each in expressions(file)):
        for metric, selectors in re.findall(r"\b((?:baton|process)_\w+)\{([^}]*)\}", expression):
            routers_process = 'role="router"' in selectors
            assert ('model_name=~"$model"' in selectors) is not routers_process, metric
            has_role = metric not in of_router and not routers_process
            assert ('role=~"$role"' in selectors) is has_role, metric
            seen.add(metric)
    assert seen & of_router
    assert seen & by_role


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboard_offers_source_cluster_model_and_role(file: Path) -> None:
    variables = {each["name"]: each for each in json.loads(file.read_text())["templating"]["list"]}
    assert list(variables) == ["source", "cluster", "model", "role"]
    assert not variables["cluster"].get("multi"), "clusters are never added up"
    for name in ("model", "role"):
        assert variables[name]["includeAll"]


def test_rates_have_a_unit_that_names_what_is_counted() -> None:
    for panel in (panel for file in DASHBOARDS for panel in panels(file) if panel.get("targets")):
        unit = panel["fieldConfig"]["defaults"]["unit"]
        rates = [
            t["expr"]
            for t in panel["targets"]
            if re.match(r"sum by \([^)]*\) \(rate\(\w+{[^}]*}\[\S+\]\)\)$", t["expr"])
        ]
        assert not (rates and unit == "short"), panel["title"]


def test_metrics_that_get_vllms_names_exist() -> None:
    registries = (RouterMetrics().registry, worker_registry())
    families = {family.name for registry in registries for family in registry.collect()}
    assert set(VLLM) <= families
