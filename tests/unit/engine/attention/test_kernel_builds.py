"""Kernels are compiled while a worker starts, several at a time, with a compiler that only counts."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch

from engine.attention.kernel_builds import build_missing
from engine.layers.layer_attention import LayerAttention


@dataclass
class Build:
    is_compiled: bool = False
    together: threading.Barrier | None = None
    """Whom it waits for in the middle of its build."""
    fails: bool = False
    builds: int = 0
    arguments: tuple[Any, ...] = field(default=())

    def build(self, verbose: bool) -> None:
        self.builds += 1
        if self.together is not None:
            self.together.wait(10.0)
        if self.fails:
            raise RuntimeError("nvcc: not found")
        self.is_compiled = True


def test_what_a_machine_lacks_is_compiled_at_the_same_time_and_said(caplog: pytest.LogCaptureFixture) -> None:
    together = threading.Barrier(2)
    builds = {"FA2": Build(together=together), "FA3": Build(together=together), "prebuilt": Build(True)}
    with caplog.at_level(logging.INFO):
        build_missing(builds, cores=16)
    assert [build.builds for build in builds.values()] == [1, 1, 0]
    assert "compiling 2 attention kernels, once on this machine, which takes minutes: FA2; FA3" in caplog.text
    assert "compiled the kernel for FA3 in 0 s" in caplog.text
    assert "prebuilt" not in caplog.text


def test_compilers_do_not_take_more_than_the_machine_has() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    class Counting(Build):
        def build(self, verbose: bool) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            super().build(verbose)
            with lock:
                running -= 1

    builds = {str(number): Counting() for number in range(4)}
    build_missing(builds, cores=2)
    assert most == 1
    assert all(build.is_compiled for build in builds.values())


def test_nothing_is_said_where_nothing_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        build_missing({"FA2": Build(True)})
    assert not caplog.records


def test_a_failure_of_the_compiler_ends_the_start_after_the_others() -> None:
    builds = {"FA2": Build(fails=True), "FA3": Build()}
    with pytest.raises(RuntimeError, match="nvcc: not found"):
        build_missing(builds, cores=8)
    assert builds["FA3"].is_compiled


def test_making_a_kernel_finds_it_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel that a model's rules ask for, each once, with what it was made for."""
    compiled: dict[tuple[Any, ...], Build] = {}

    def spec(*arguments: Any) -> Build:
        return compiled.setdefault(arguments, Build())

    jit, prefill = ModuleType("flashinfer.jit"), ModuleType("flashinfer.prefill")
    vars(jit).update(gen_batch_prefill_module=spec)
    vars(prefill).update(get_batch_prefill_module=lambda *arguments: compiled[arguments])
    for name, module in (
        ("flashinfer", ModuleType("flashinfer")),
        (jit.__name__, jit),
        (prefill.__name__, prefill),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "engine.attention.flashinfer_kernels", raising=False)
    kernels = importlib.import_module("engine.attention.flashinfer_kernels")
    monkeypatch.delitem(sys.modules, "engine.attention.flashinfer_kernels")

    heads, dtypes = kernels.Heads(8, 4, 256), (torch.bfloat16, torch.bfloat16)
    rules = [
        LayerAttention(scale=1.0, soft_cap=50.0),
        LayerAttention(scale=1.0, soft_cap=50.0, window=4096),
        LayerAttention(scale=1.0, soft_cap=50.0, window=512),
    ]
    both = [(kernels.Kernel.FA2, dtypes), (kernels.Kernel.FA3, dtypes)]
    kernels.compile_kernels(both, heads, rules)

    assert sorted((args[0], args[-3], args[-2]) for args in compiled) == [
        ("fa2", False, True),
        ("fa2", True, True),
        ("fa3", False, True),
        ("fa3", True, True),
    ]
    assert all(build.builds == 1 for build in compiled.values())
    for rule in rules:
        for kernel, _ in both:
            made = prefill.get_batch_prefill_module(*kernels._variant(kernel, heads, dtypes, rule))
            assert made.is_compiled
