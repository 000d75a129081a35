"""What deploy/ holds is accepted by the programs that read it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.config.flags.command_line import parse

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


def cluster_file(name: str) -> dict[str, Any]:
    """As Ray completes and checks it."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config: dict[str, Any] = prepare_config(yaml.safe_load((DEPLOY / name).read_text()))
    validate_config(config)
    return config


def test_ray_accepts_the_cluster_file() -> None:
    config = cluster_file("cluster.yaml")
    assert config["max_workers"] == len(config["provider"]["worker_ips"])


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
def test_ray_accepts_the_files_for_clouds(name: str) -> None:
    config = cluster_file(name)
    types = config["available_node_types"]
    assert types["head"]["resources"]["GPU"] == 0
    assert types["gpu"]["max_workers"] <= config["max_workers"]


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
def test_clouds_get_the_same_software_as_other_machines(name: str) -> None:
    here, there = (yaml.safe_load((DEPLOY / file).read_text()) for file in ("cluster.yaml", name))
    for key in ("file_mounts", "setup_commands", "head_start_ray_commands", "worker_start_ray_commands"):
        assert here[key] == there[key]


def test_the_routers_settings_are_settings() -> None:
    config = parse(["--config", str(DEPLOY / "router.yaml")])
    nodes = yaml.safe_load((DEPLOY / "cluster.yaml").read_text())["provider"]["worker_ips"]
    assert config.cluster.wait_for_nodes == 1 + len(nodes)


@pytest.mark.parametrize("script", ["service", "start_ray"])
def test_scripts_are_bash(script: str) -> None:
    subprocess.run(["bash", "-n", DEPLOY / script], check=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze comes with systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "baton-router.service").read_text()
    installed = tmp_path / "baton-router.service"
    installed.write_text(unit.replace("/home/ubuntu/baton/venv/bin/router", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", installed], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "baton-router" not in done.stderr, done.stderr


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """deploy/service in a home whose router ends with 3, then with 2, and then stays."""
    router = tmp_path / "baton" / "venv" / "bin" / "router"
    router.parent.mkdir(parents=True)
    router.write_text(_ROUTER)
    router.chmod(0o755)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [DEPLOY / "service", *words],
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], **_QUICK},
            check=False,
            capture_output=True,
            text=True,
        )

    yield run
    run("stop")


_QUICK = {"BATON_RESTART_S": "0", "BATON_ROTATE_S": "0.05", "BATON_LOG_BYTES": "100000"}
_ROUTER = """#!/bin/bash
[ "$1" = workers ] && exit
status=$(cat ~/next 2>/dev/null || echo 3)
echo $$ > ~/router_pid
echo "status $status"
case $status in 3) echo 2 > ~/next; exit 3;; 2) echo stay > ~/next; exit 2;; esac
trap 'while [ -e ~/drains ]; do sleep 0.05; done; echo drained; exit 0' TERM
[ ! -e ~/talks ] || head -c 200000 /dev/zero | tr '\\0' x
while true; do sleep 0.05; done
"""


def await_log(service: Callable[..., subprocess.CompletedProcess[str]], words: str, *, times: int = 1) -> str:
    deadline = time.monotonic() + 20
    while (log := service("log").stdout).count(words) < times:
        assert time.monotonic() < deadline, log
        time.sleep(0.05)
    return log


def test_the_service_starts_a_router_again_unless_its_settings_are_wrong(
    service: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert service("status").returncode == 1
    service("start")
    log = await_log(service, "ended with status 2")
    assert "ended with status 3" in log
    assert "status stay" not in log
    service("start")
    await_log(service, "status stay")
    assert service("status").returncode == 0
    assert "already" in service("start").stdout
    assert service("stop").returncode == 0
    assert "drained" in service("log").stdout
    assert service("status").returncode == 1


def test_a_restart_waits_for_a_drain_of_any_length_and_starts_a_router(
    service: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "next").write_text("stay")
    (tmp_path / "drains").touch()
    service("start")
    await_log(service, "status stay")
    with ThreadPoolExecutor() as pool:
        restart = pool.submit(service, "restart")
        stays_undone(restart)
        (tmp_path / "drains").unlink()
        assert restart.result().returncode == 0
    await_log(service, "drained")
    await_log(service, "status stay", times=2)
    assert "running" in service("status").stdout


def test_a_start_during_a_stop_waits_for_it_and_leaves_a_router_running(
    service: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "next").write_text("stay")
    (tmp_path / "drains").touch()
    service("start")
    await_log(service, "status stay")
    with ThreadPoolExecutor() as pool:
        stop = pool.submit(service, "stop")
        while "stopping" not in service("status").stdout:
            time.sleep(0.05)
        start = pool.submit(service, "start")
        stays_undone(start)
        (tmp_path / "drains").unlink()
        assert stop.result().returncode == start.result().returncode == 0
    await_log(service, "status stay", times=2)
    assert service("status").returncode == 0


def test_a_router_that_was_ended_without_the_service_is_started_again(
    service: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "next").write_text("stay")
    service("start")
    await_log(service, "status stay")
    os.kill(int((tmp_path / "router_pid").read_text()), signal.SIGTERM)
    await_log(service, "the router ended with status 0")
    await_log(service, "status stay", times=2)


def test_the_log_is_rotated_while_the_router_runs(
    service: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "next").write_text("stay")
    (tmp_path / "talks").touch()
    service("start")
    kept, log = tmp_path / "baton" / "router.log.1", tmp_path / "baton" / "router.log"
    deadline = time.monotonic() + 20
    while not (kept.exists() and kept.stat().st_size >= 200_000 and log.stat().st_size < 100_000):
        assert time.monotonic() < deadline, "the log is copied, then truncated"
        time.sleep(0.05)
    service("stop")
    assert "drained" in log.read_text()


def stays_undone(command: Future[object]) -> None:
    """Whether a command that must wait does so; it would return in a tenth of the time."""
    with pytest.raises(TimeoutError):
        command.result(1.0)


_RAY = """#!/bin/bash
[ "$1" = start ] || exit 0
echo start >> ~/starts
[ "$(wc -l < ~/starts)" -gt 1 ] || { echo "timed out during startup"; exit 1; }
echo "Ray runtime started"
exec sleep 2
"""


def test_a_node_whose_ray_is_slow_to_start_tries_again(tmp_path: Path) -> None:
    ray = tmp_path / "baton" / "venv" / "bin" / "ray"
    ray.parent.mkdir(parents=True)
    ray.write_text(_RAY)
    ray.chmod(0o755)
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", DEPLOY / "start_ray", "worker", "127.0.0.1"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "timed out during startup" in done.stderr
    assert (tmp_path / "starts").read_text() == "start\n" * 2
