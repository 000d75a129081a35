"""The order in which a start finds the models and starts Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from engine.loader.checkpoint import CheckpointError
from router.cli import startup
from router.cli.progress import StartupDisplay
from router.cli.startup import Start
from router.cluster.ray_connection import RayConnection
from router.config.flags.command_line import parse
from router.frontend.access import Access


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
