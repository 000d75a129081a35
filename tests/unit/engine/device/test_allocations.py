"""Allocations of the CUDA driver are counted, where there is one."""

from __future__ import annotations

import pytest
import torch

from engine.device.allocations import num_allocations


def test_a_cpu_has_none() -> None:
    assert num_allocations("cpu") == 0


def test_a_gpu_that_nothing_has_used_yet_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert num_allocations("cuda:1") == 0


def test_memory_of_the_gpu_and_pinned_memory_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    gpu = {"cuda:1": {"num_device_alloc": 5, "num_device_free": 1, "num_alloc_retries": 9}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", gpu.__getitem__)
    host = {"num_host_alloc": 20, "num_host_free": 3, "host_alloc_time": {"total": 7}}
    monkeypatch.setattr(torch.cuda, "host_memory_stats_as_nested_dict", lambda: host)
    assert num_allocations("cuda:1") == 29
