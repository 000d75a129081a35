"""The rules of deploy/prometheus: what they fire for, and for which model of which cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.project.monitoring.metric_names import CLUSTER_LABEL, exported_metrics, metrics_in
from tests.unit.project.monitoring.test_dashboards import DASHBOARDS, panels

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool comes with Prometheus: apt-get install prometheus"
)


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_alerts_are_about_metrics_that_exist() -> None:
    used = {name for rule in rules() for name in metrics_in(rule["expr"])}
    assert used
    assert not used - exported_metrics()


def test_every_aggregation_is_by_cluster_and_by_model_or_router() -> None:
    for rule in rules():
        for operator, labels in re.findall(r"\b(sum|min|max|avg|count)\b(?: by \(([^)]*)\))?", rule["expr"]):
            kept = labels.split(", ")
            assert CLUSTER_LABEL in kept, f"{operator} of {rule}"
            about_routers = "instance" in kept or 'up{job="baton-router"}' in rule["expr"]
            assert "model_name" in kept or about_routers, f"{operator} of {rule}"


def test_panels_alerts_and_the_tuning_page_have_the_same_thresholds() -> None:
    page = (DEPLOY.parent / "docs" / "tuning.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*?\| `([^`]+)` \| ([\d.]+) \|", page, flags=re.MULTILINE)
    assert len(rows) == 5
    alerts = {rule["alert"]: rule["expr"] for rule in rules() if "alert" in rule}
    lines = {
        panel["title"]: panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"]
        for file in DASHBOARDS
        for panel in panels(file)
        if "thresholds" in panel.get("fieldConfig", {}).get("defaults", {})
    }
    assert len(lines) == len(rows)
    for alert, title, limit in rows:
        assert re.search(rf"> {re.escape(limit)}( |$)", alerts[alert]), alert
        assert lines[title] == float(limit), title


@needs_promtool
def test_prometheus_accepts_its_configuration() -> None:
    promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")


@needs_promtool
def test_alerts_fire_for_the_model_and_the_cluster_that_fail() -> None:
    promtool("test", "rules", Path(__file__).parent / "rules_test.yml")


def promtool(*words: str | Path) -> None:
    done = subprocess.run(["promtool", *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
