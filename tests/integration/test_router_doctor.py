"""`router doctor` as it is run: real processes, real UCX."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from router.command.doctor.end_process import LinkFailed
from router.command.doctor.links import measure
from tests.unit.tiny import save_tiny_llama


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_tiny_llama(tmp_path)
    return tmp_path


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "router.command.main", "doctor", "--device", "cpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


def test_a_machine_that_runs_the_tests_passes(model: Path) -> None:
    run = doctor("--model", str(model), "--http-port", "0", "--grpc-port", "0")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 FAIL" in run.stdout
    assert "GB/s in 64 MiB writes, by " in run.stdout
    assert "bytes a token in " in run.stdout


def test_two_processes_that_cannot_reach_each_other_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "no_such_transport")
    with pytest.raises(LinkFailed, match=r"\w"):
        measure("cpu", patience_s=200)


def test_the_transports_of_this_machine_are_measured_with_their_cpu_time() -> None:
    run = doctor("--transports")
    assert run.returncode == 0, run.stdout + run.stderr
    [tcp] = re.findall(r"OK   tcp  .*?by\s+(\S+)", run.stdout, re.DOTALL)
    assert tcp.startswith("tcp/")
    assert re.search(r"CPU seconds per GB: [\d.]+ to\s+write, [\d.]+ to\s+receive", run.stdout)
    assert re.search(r"(OK|WARN) +cma ", run.stdout)
    assert "model" not in run.stdout


def test_the_environment_of_workers_applies_without_a_cluster() -> None:
    run = doctor("--worker-env", "UCX_TLS=tcp", "--http-port", "0", "--grpc-port", "0")
    assert re.search(r"host → host +[\d.]+ GB/s in 64 MiB writes, by tcp/", run.stdout), run.stdout


def test_transports_of_a_cluster_are_refused() -> None:
    run = doctor("--transports", "--ray-address", "auto")
    assert run.returncode == 2
    assert "leave --ray-address out" in run.stderr
