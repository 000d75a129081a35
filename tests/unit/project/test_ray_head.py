"""deploy/start_ray supervises the head: GCS and autoscaler start again alone, a raylet with all of Ray."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"

_RAYS_PARTS = ("raylet/raylet", "autoscaler/_private/monitor.py", "gcs/gcs_server")
_HEAD = """#!/bin/bash
if [ "$1" = stop ]; then    # in Ray's order
  for part in raylet monitor.py gcs_server; do pkill -f "$HOME/.*$part"; sleep 0.1; done
  exit
fi
mkdir -p "$RAY_gcs_storage_path" && echo start >> "$RAY_gcs_storage_path/starts"
for part in PARTS; do setsid bash "$HOME/$part" > /dev/null 2>&1 < /dev/null & done
sleep 0.2
echo "Ray runtime started"
""".replace("PARTS", " ".join(_RAYS_PARTS))
_PART = "echo $$ >> $0.pids; while true; do sleep 0.05; done"


class Head:
    """deploy/start_ray in a home whose Ray is three idle scripts."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.state = home / "baton" / "gcs"
        self.nodes = home / "ray" / "cluster-baton.state"
        """Ray's file of what its autoscaler knows of the nodes."""
        for name, text in {"baton/venv/bin/ray": _HEAD, **dict.fromkeys(_RAYS_PARTS, _PART)}.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
            (home / name).chmod(0o755)
        shutil.copy(DEPLOY / "start_ray", home / "baton")

    def run(self, *command: str) -> None:
        environment = {
            "HOME": str(self._home),
            "PATH": os.environ["PATH"],
            "RAY_TMPDIR": str(self._home),
            "BATON_RAY_STOP_S": "0.5",
        }
        subprocess.run(
            ["bash", *command], cwd=self._home / "baton", env=environment, check=True, capture_output=True
        )

    def pids(self, part: str) -> list[int]:
        """Process ids that the part had so far."""
        return [int(pid) for pid in (self._home / f"{part}.pids").read_text().split()]

    def starts(self) -> int:
        """Starts of Ray, as its state knows."""
        return (self.state / "starts").read_text().count("start")

    def until_supervised(self, times: int) -> None:
        """Wait until GCS and the autoscaler have been supervised this often."""
        log = self._home / "baton" / "ray_restarts.log"
        self.until(lambda: log.exists() and log.read_text().count("is supervised") == 2 * times)

    def running(self) -> str:
        listed = ["pgrep", "-f", f"^bash {self._home}/"]
        return subprocess.run(listed, check=False, capture_output=True, text=True).stdout

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    head = Head(tmp_path)
    yield head
    while head.running():
        head.run("venv/bin/ray", "stop")


def test_gcs_and_autoscaler_are_started_again_alone_but_a_raylet_with_all_of_ray(head: Head) -> None:
    head.run("start_ray", "head")
    head.until_supervised(1)
    for part in ("gcs/gcs_server", "autoscaler/_private/monitor.py"):
        head.until(lambda part=part: len(head.pids(part)) == 1)
        os.kill(head.pids(part)[0], signal.SIGKILL)
        head.until(lambda part=part: len(head.pids(part)) == 2)
    assert (head.starts(), len(head.pids("raylet/raylet"))) == (1, 1)
    assert stat.S_IMODE(head.state.stat().st_mode) == 0o700
    os.kill(head.pids("raylet/raylet")[0], signal.SIGKILL)
    head.until(lambda: len(head.pids("raylet/raylet")) == 2)
    assert head.starts() == 2, "the state is kept"
    head.until_supervised(2)
    assert len(head.pids("gcs/gcs_server")) == 3
    os.kill(head.pids("gcs/gcs_server")[2], signal.SIGKILL)
    head.until(lambda: len(head.pids("gcs/gcs_server")) == 4)


def test_ray_stop_ends_the_supervision_and_a_new_head_is_another_cluster(head: Head) -> None:
    head.run("start_ray", "head")
    head.until_supervised(1)
    head.run("venv/bin/ray", "stop")
    time.sleep(2.0)
    assert not head.running()
    assert len(head.pids("raylet/raylet")) == 1
    head.run("start_ray", "head", "again")
    assert head.starts() == 2
    head.run("start_ray", "head")
    assert head.starts() == 1


def test_the_autoscaler_knows_the_nodes_after_a_reboot_has_emptied_tmp(head: Head) -> None:
    head.run("start_ray", "head")
    head.nodes.parent.mkdir()
    head.nodes.write_text("10.0.0.11")
    kept = head.state.parent / "nodes" / head.nodes.name
    head.until(kept.exists)
    time.sleep(0.1)
    head.nodes.write_text("10.0.0.11, 10.0.0.12")
    head.until(lambda: "12" in kept.read_text())
    head.run("venv/bin/ray", "stop")
    shutil.rmtree(head.nodes.parent)
    head.run("start_ray", "head", "again")
    assert head.nodes.read_text() == "10.0.0.11, 10.0.0.12"
    head.nodes.unlink()
    head.run("start_ray", "head")
    assert not head.nodes.exists()
