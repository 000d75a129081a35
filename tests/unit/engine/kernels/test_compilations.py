"""Every compiler reports what it compiles; a kernel that is compiled while serving is told apart."""

from __future__ import annotations

import logging
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from engine.kernels import compilations, compiler_hooks
from engine.kernels.compilations import CompilationPhase, Compilations
from engine.kernels.cpu import build
from worker.session.metrics import WorkerMetrics


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Compilations:
    """The process' compilations, empty."""
    fresh = Compilations()
    for module in (compilations, compiler_hooks, build):
        monkeypatch.setattr(module, "COMPILATIONS", fresh)
    return fresh


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    vars(made).update(contents)
    monkeypatch.setitem(sys.modules, name, made)
    return made


class JitSpec:
    """flashinfer's, with a compiler that takes no time."""

    name = "batch_prefill_with_kv_cache"
    is_compiled = False

    def build_and_load(self) -> str:
        self.is_compiled = True
        return "module"


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Triton's knobs, and flashinfer, as far as they are watched."""
    core = module(monkeypatch, "flashinfer.jit.core", JitSpec=type("JitSpec", (JitSpec,), {}))
    jit = module(monkeypatch, "flashinfer.jit", core=core)
    module(monkeypatch, "flashinfer", jit=jit)
    knobs = SimpleNamespace(compilation=SimpleNamespace(listener=None))
    return module(monkeypatch, "triton", knobs=knobs)


def compiled(triton: Any, *, cache_hit: bool, num_rows: int | None) -> None:
    """What `triton.compile` does at the end, for a kernel whose `num_rows` is a constant or is not."""
    src = SimpleNamespace(
        name="_grouped_matmul",
        signature={"x_ptr": "*bf16", "num_rows": "i32" if num_rows is None else "constexpr", "size": "i32"},
        constants={} if num_rows is None else {(1,): num_rows},
        attrs={(0,): [["tt.divisibility", 16]]},
    )
    times = SimpleNamespace(total=1_500_000)
    triton.knobs.compilation.listener(
        src=src, metadata={}, metadata_group={}, times=times, cache_hit=cache_hit
    )


def test_kernels_of_triton_are_counted_by_whether_the_cache_had_them(
    triton: Any, noted: Compilations
) -> None:
    compiler_hooks.watch_compilers()
    compiled(triton, cache_hit=False, num_rows=None)
    compiled(triton, cache_hit=True, num_rows=None)
    assert noted.compiled == {CompilationPhase.STARTING: 1}
    assert noted.loaded == {CompilationPhase.STARTING: 1}
    assert noted.seconds == pytest.approx(3.0)
    assert not noted.late


def test_modules_of_flashinfer_are_counted_once_however_often_compilers_are_watched(
    triton: Any, noted: Compilations
) -> None:
    compiler_hooks.watch_compilers()
    compiler_hooks.watch_compilers()
    spec = sys.modules["flashinfer.jit.core"].JitSpec()
    assert spec.build_and_load() == "module"
    assert noted.compiled == {CompilationPhase.STARTING: 1}
    assert spec.build_and_load() == "module"
    assert noted.loaded == {CompilationPhase.STARTING: 1}


def test_a_kernel_compiled_while_serving_is_named_with_its_variant(
    triton: Any, noted: Compilations, caplog: pytest.LogCaptureFixture
) -> None:
    compiler_hooks.watch_compilers()
    compiled(triton, cache_hit=False, num_rows=None)
    noted.serve()
    compiled(triton, cache_hit=False, num_rows=1)
    assert noted.compiled == {CompilationPhase.STARTING: 1, CompilationPhase.SERVING: 1}
    assert list(noted.late) == ["grouped_matmul x_ptr: *bf16 / 16, num_rows=1, size: i32"]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "compiled the kernel grouped_matmul in 1.500 s while serving" in record.message


def test_a_start_says_what_it_has_compiled(triton: Any, noted: Compilations) -> None:
    said: list[str] = []
    noted.on_note = said.append
    compiler_hooks.watch_compilers()
    compiled(triton, cache_hit=False, num_rows=None)
    compiled(triton, cache_hit=True, num_rows=None)
    compiled(triton, cache_hit=False, num_rows=1)
    assert said == [
        "compiled 1 kernels in 2 s, last grouped_matmul",
        "compiled 2 kernels in 4 s, last grouped_matmul",
    ]


def test_kernels_for_the_processor_are_counted(
    tmp_path: Path, noted: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "compile_library", lambda library: library.touch())
    build.built_library(tmp_path)
    build.built_library(tmp_path)
    assert noted.compiled == {CompilationPhase.STARTING: 1}


def test_metrics_have_both_phases_from_the_start(noted: Compilations) -> None:
    metrics = WorkerMetrics()
    metrics.watch_compilations(noted)
    noted.note("a", 1.0)
    value = metrics.registry.get_sample_value
    assert value("baton_kernels_compiled_total", {"when": "starting"}) == 1
    assert value("baton_kernels_compiled_total", {"when": "serving"}) == 0
    noted.serve()
    noted.note("b", 1.0, cached=True)
    assert value("baton_kernels_compiled_total", {"when": "serving"}) == 0
    assert value("baton_kernels_loaded_total", {"when": "serving"}) == 1
