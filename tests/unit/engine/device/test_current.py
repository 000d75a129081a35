"""Every thread that drives an engine has the engine's GPU as its current device."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from engine.device.current import enter_device
from engine.executor.runner import ModelRunner
from tests.unit.engine.engines import make_engine
from worker.process.engine_loop import EngineLoop
from worker.session.inbox import Inbox


class Refused(Exception):
    pass


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Device and thread of each call that changes a thread's current GPU."""
    calls: list[tuple[str, str]] = []

    def set_device(device: torch.device) -> None:
        calls.append((str(device), threading.current_thread().name))

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    return calls


def test_only_a_numbered_gpu_changes_the_current_device(entered: list[tuple[str, str]]) -> None:
    for name in ("cpu", "cuda", "cuda:1"):
        assert str(enter_device(name)) == name
    assert [device for device, _ in entered] == ["cuda:1"]


def test_the_engine_thread_works_on_the_engine_s_gpu(entered: list[tuple[str, str]]) -> None:
    engine = make_engine()
    engine.config = replace(engine.config, device="cuda:1")
    role = Mock()
    role.next_wakeup.return_value = 1e12
    loop = EngineLoop(engine, role, Inbox(), Mock(), Mock(), clock=lambda: 0.0, on_death=Mock())
    loop.start()
    loop.stop()
    assert entered == [("cuda:1", "engine")]


def test_a_model_is_loaded_by_a_thread_on_its_gpu(
    entered: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        assert entered == [("cuda:1", threading.current_thread().name)]
        raise Refused

    monkeypatch.setattr("engine.executor.runner.load_model", load)
    monkeypatch.setattr("engine.executor.runner.kernels_ahead", lambda *_: nullcontext())
    with pytest.raises(Refused):
        ModelRunner(replace(make_engine().config, device="cuda:1", load_format="dummy"), spec=Mock())
