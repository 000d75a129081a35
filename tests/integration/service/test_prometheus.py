"""A real Prometheus scrapes a loaded cluster: every panel has something to draw, and no alert fires."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template
from typing import Any

import httpx
import pytest
import yaml

from benchmarks.lib.servers.server import free_port
from engine.config import LoraConfig, SpeculationConfig
from router.config.choices import Mode
from router.dispatch.admission.pause_gate import PauseMode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import save_small_model
from tests.unit.engine.adapters.peft_oracle import save_adapter

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
REQUEST = {"model": "small", "prompt": "one two three " * 40, "max_tokens": 24, "ignore_eos": True}
READ = {"query": [5, 6], "items": [[7], [8]], "label_token_ids": [9, 10]}
PATIENCE_S = 90.0
VARIABLES = {"__rate_interval": "1m", "cluster": "baton", "model": "small", "role": "prefill|decode"}
DRAFTING = SpeculationConfig(num_draft_tokens=4, adaptive=False)
"""Drafts come from the answer that the same request got before."""

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt-get install prometheus")


def expressions() -> dict[str, str]:
    """Expressions of all panels, by dashboard, title and legend; with variables at a value, over a window to
    wait for.
    """
    found = {}
    for file in (DEPLOY / "grafana").glob("*.json"):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", ()):
                name = f"{file.stem}: {panel['title']}: {target['legendFormat']}"
                found[name] = Template(target["expr"]).substitute(VARIABLES)
    return found


@asynccontextmanager
async def prometheus(cluster: LocalCluster, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """With the configuration of deploy/, but for addresses and intervals."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    shutil.copy(DEPLOY / "prometheus" / "rules.yml", folder)
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    router, workers = config["scrape_configs"]
    router["static_configs"][0]["targets"] = [cluster.url.removeprefix("http://")]
    [discovery] = workers["http_sd_configs"]
    discovery |= {"url": f"{cluster.url}/sd/workers", "refresh_interval": "1s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def query(client: httpx.AsyncClient, expression: str) -> list[Any]:
    try:
        response = await client.get("/api/v1/query", params={"query": expression})
    except httpx.TransportError:
        return []  # it starts
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return []  # it reads its files
    answer = response.json()
    assert answer["status"] == "success", f"{expression}: {answer}"
    results: list[Any] = answer["data"]["result"]
    return [result for result in results if result["value"][1] != "NaN"]


async def test_every_panel_draws_something_and_no_alert_fires(tmp_path: Path) -> None:
    small = save_small_model(tmp_path / "small")
    style = save_adapter(small.folder, tmp_path / "style", 1)
    missing = expressions()
    async with (
        local_cluster(small, Mode.DISAGG, speculation=DRAFTING, lora=LoraConfig()) as cluster,
        httpx.AsyncClient(base_url=cluster.url, timeout=60) as client,
        prometheus(cluster, tmp_path) as server,
    ):
        deadline = time.monotonic() + PATIENCE_S
        while missing and time.monotonic() < deadline:
            (await client.post("/v1/completions", json=REQUEST)).raise_for_status()
            (await client.post("/v1/score", json=READ)).raise_for_status()
            for session in cluster.registry.sessions():
                await session.adapters.load("style", str(style))
            await cluster.weights.pause(PauseMode.KEEP)
            await cluster.weights.resume()
            missing = {name: e for name, e in missing.items() if not await query(server, e)}
        assert not missing
        alerts = (await server.get("/api/v1/alerts")).json()["data"]["alerts"]
        rules = (await server.get("/api/v1/rules")).json()["data"]["groups"]
    assert not [alert["labels"] for alert in alerts if alert["state"] == "firing"]
    assert not [rule["name"] for group in rules for rule in group["rules"] if rule["health"] != "ok"]


def test_pages_are_for_outages_and_not_for_restarts_or_shed_load() -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    pages = {rule["alert"] for rule in rules if rule.get("labels", {}).get("severity") == "page"}
    assert pages == {"BatonErrorsBurnFast", "BatonRouterDown", "BatonRoleHasNoWorker"}
    errors = [rule["expr"] for rule in rules if rule.get("record", "").startswith("baton:errors")]
    for expression in errors:
        [spared] = re.findall(r'outcome!~"([^"]+)"', expression)
        assert {"overloaded", "too_many_requests"} <= set(spared.split("|"))
