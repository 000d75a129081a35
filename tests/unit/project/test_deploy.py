"""What deploy/ holds is accepted by those who read it, and speaks of metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.dispatch.metrics import RouterMetrics
from rpc.baton.v1 import worker_pb2
from worker.metrics import WorkerMetrics

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


def exported_metrics() -> set[str]:
    """Names as Prometheus stores them, with _total, _bucket and so on; also of series without a sample."""
    router, worker = RouterMetrics("disagg"), WorkerMetrics("decode", "disagg", "decode-0")
    worker.watch(worker_pb2.WorkerStats)
    names = set()
    for registry in (router.registry, worker.registry):
        for family in registry.collect():
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
                family.type, ("",)
            )
            names |= {family.name + suffix for suffix in suffixes}
    return names


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\bbaton_\w+", expression))


def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DEPLOY / "grafana" / "baton.json").read_text())
    return content


def test_every_panel_of_the_dashboard_draws_metrics_that_exist() -> None:
    expressions = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 20
    unknown = {name for expression in expressions for name in metrics_in(expression)} - exported_metrics()
    assert not unknown


def test_the_dashboard_is_the_one_that_its_script_writes(tmp_path: Path) -> None:
    script = shutil.copy(DEPLOY / "grafana" / "dashboard.py", tmp_path)
    subprocess.run([sys.executable, script], check=True)
    assert json.loads((tmp_path / "baton.json").read_text()) == dashboard()


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for panel in dashboard()["panels"]
        for grid in (panel["gridPos"],)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells))


def test_alerts_are_about_metrics_that_exist() -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    used = {name for group in groups for rule in group["rules"] for name in metrics_in(rule["expr"])}
    assert used
    assert not used - exported_metrics()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
def test_prometheus_accepts_its_configuration() -> None:
    config = str(DEPLOY / "prometheus" / "prometheus.yml")
    done = subprocess.run(
        ["promtool", "check", "config", config], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_ray_accepts_the_cluster_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(yaml.safe_load((DEPLOY / "cluster.yaml").read_text()))
    validate_config(config)
    provider = config["provider"]
    assert config["max_workers"] == len(provider["worker_ips"])
