"""What --dtype auto means on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.device import cpu_dtype
from engine.device.cpu_dtype import preferred_cpu_dtype


def cpuinfo(folder: Path, flags: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor : 0\nmodel name : A\nflags : {flags}\n\nprocessor : 1\n")
    return path


def test_a_processor_without_bfloat16_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_dtype, "_measured", lambda: pytest.fail("measured"))

    assert preferred_cpu_dtype(tmp_path, cpuinfo(tmp_path, "fma avx2 avx512f")) == "float32"
    assert preferred_cpu_dtype(tmp_path, tmp_path / "there is none") == "float32"


@pytest.mark.parametrize("flag", ["amx_bf16", "avx512_bf16"])
@pytest.mark.parametrize("faster", ["bfloat16", "float32"])
def test_what_was_measured_once_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, faster: str
) -> None:
    trials = [faster]
    monkeypatch.setattr(cpu_dtype, "_measured", trials.pop)
    told = cpuinfo(tmp_path, f"fma {flag}")

    assert preferred_cpu_dtype(tmp_path / "cache", told) == faster
    assert preferred_cpu_dtype(tmp_path / "cache", told) == faster


def test_a_trial_that_fails_means_float32_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = cpuinfo(tmp_path, "avx512_bf16")
    monkeypatch.setattr(cpu_dtype, "_measured", lambda: None)
    assert preferred_cpu_dtype(tmp_path / "cache", told) == "float32"

    monkeypatch.setattr(cpu_dtype, "_measured", lambda: "bfloat16")
    assert preferred_cpu_dtype(tmp_path / "cache", told) == "bfloat16"


def test_the_trial_prints_a_dtype() -> None:
    assert cpu_dtype._measured() in ("float32", "bfloat16")
