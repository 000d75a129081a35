"""The order in which a start finds the models and starts Ray."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.model_config.errors import WeightsError
from engine.modeling.loader.checkpoint import CheckpointError
from router.api.access import Access
from router.cluster.ray_connection import RayConnection
from router.cluster.worker_config.machine import PlanError
from router.command import startup
from router.command.progress import StartupDisplay
from router.command.startup import Start, StartupFailed
from router.config.flags.command_line import parse
from tests.unit.router.cluster.worker_config.models import write_model


class FakeRay(RayConnection):
    def __init__(self, *configs: Any) -> None:
        super().__init__(configs)
        self.calls: list[str] = []
        self.is_joined = threading.Event()

    async def join(self, on_wait: Callable[[str], object]) -> None:
        self.calls.append("join")
        self.is_joined.set()

    async def close(self) -> None:
        self.calls.append("close")


async def start(connection: FakeRay, config: Any) -> None:
    async with AsyncExitStack() as stack:
        with StartupDisplay() as display:
            await Start([config], connection, Access.load(config), display, stack).models()


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    monkeypatch.setattr("router.cluster.ray_connection.num_local_gpus", lambda: 0)
    return FakeRay(parse(["--model", "smollm2", "--dtype", "float32"]))


async def test_ray_starts_while_a_model_is_converted(
    connection: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def converting(*_: Any, **__: Any) -> None:
        assert connection.is_joined.wait(30)
        raise CheckpointError("it cannot be converted")

    monkeypatch.setattr(startup, "_RESOLVED_S", 0.01)
    monkeypatch.setattr(startup, "resolve", converting)
    with pytest.raises(CheckpointError, match="cannot be converted"):
        await start(connection, parse(["--model", "smollm2", "--dtype", "float32"]))
    assert connection.calls == ["join", "close"]


async def test_a_model_that_is_not_found_at_once_starts_no_ray(
    connection: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise CheckpointError("there is none")

    monkeypatch.setattr(startup, "_RESOLVED_S", 30.0)
    monkeypatch.setattr(startup, "resolve", missing)
    with pytest.raises(CheckpointError, match="there is none"):
        await start(connection, parse(["--model", "smollm2", "--dtype", "float32"]))
    assert connection.calls == []


async def test_the_dtype_of_a_cpu_is_measured_while_a_model_is_converted(
    connection: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = threading.Event()

    def measuring() -> str:
        measured.set()
        return "float32"

    def converting(*_: Any, **__: Any) -> None:
        assert measured.wait(30)
        raise CheckpointError("it cannot be converted")

    monkeypatch.setattr(startup, "_RESOLVED_S", 0.01)
    monkeypatch.setattr(startup, "resolve", converting)
    monkeypatch.setattr(startup, "preferred_cpu_dtype", measuring)
    with pytest.raises(CheckpointError, match="cannot be converted"):
        await start(connection, parse(["--model", "smollm2"]))


def folder_of(tmp_path: Path) -> Path:
    write_model(tmp_path)
    save_file({"a": torch.zeros(1000)}, tmp_path / "model.safetensors")
    return tmp_path


async def test_a_folder_without_a_tokenizer_starts_no_ray(connection: FakeRay, tmp_path: Path) -> None:
    folder_of(tmp_path)
    (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    with pytest.raises(StartupFailed, match=rf"{tmp_path} has no tokenizer.json"):
        await start(connection, parse(["--model", str(tmp_path), "--dtype", "float32"]))
    assert connection.calls == []


async def test_weights_that_were_cut_off_start_no_ray(connection: FakeRay, tmp_path: Path) -> None:
    weights = folder_of(tmp_path) / "model.safetensors"
    (tmp_path / "tokenizer.json").write_text("{}")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=rf"{weights} has .* bytes, and by its header"):
        await start(connection, parse(["--model", str(tmp_path), "--dtype", "float32"]))
    assert connection.calls == []


async def test_a_pool_larger_than_the_memory_starts_no_ray(connection: FakeRay, tmp_path: Path) -> None:
    folder_of(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    flags = ["--dtype", "float32", "--kv-pool-tokens", "1000000000000"]
    with pytest.raises(PlanError, match=r"--kv-pool-tokens 1000000000000 takes [\d,.]+ GiB, .* or less"):
        await start(connection, parse(["--model", str(tmp_path), *flags]))
    assert connection.calls == []


def test_ctrl_c_while_modules_are_imported_leaves_no_traceback() -> None:
    code = """
import builtins, os, signal, sys
from router.command import main
real = builtins.__import__
def interrupted(name, *arguments, **options):
    if name == "router.command.frontends":
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *arguments, **options)
builtins.__import__ = interrupted
sys.exit(main.main(["--model", "smollm2"]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == -signal.SIGINT
    assert "Traceback" not in run.stderr
