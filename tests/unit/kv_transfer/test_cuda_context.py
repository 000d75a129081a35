"""A thread that moves KV of a GPU has a CUDA context, or says that it has none."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest
import torch

from kv_transfer import PoolMemory, cuda_context


class Driver:
    """libcuda, as a thread finds it."""

    def __init__(self, context: int | None) -> None:
        self._context = context

    def cuCtxGetCurrent(self, out: Any) -> int:  # noqa: N802 - the driver's name
        out._obj.value = self._context
        return 0


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Devices that were given work."""
    devices: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: devices.append(device))
    return devices


def test_a_context_is_made_by_giving_the_device_work(
    touched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(context=1))
    cuda_context.enter(2)
    assert touched == ["cuda:2"]


def test_a_thread_without_a_context_is_an_error_and_not_a_slow_transfer(
    touched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(context=None))
    with pytest.raises(cuda_context.NoContext, match="NVLink"):
        cuda_context.enter(0)


def test_each_thread_that_drives_a_transport_is_given_the_context_once(
    touched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(context=1))
    caller = cuda_context.Caller(PoolMemory(0, 1, 1, device="cuda:1"))
    for _ in range(2):
        caller.enter()
    thread = threading.Thread(target=caller.enter)
    thread.start()
    thread.join()
    assert touched == ["cuda:1", "cuda:1"]


def test_host_memory_needs_no_context(touched: list[str]) -> None:
    cuda_context.Caller(PoolMemory(0, 1, 1)).enter()
    assert not touched
