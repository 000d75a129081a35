"""Libraries of kernels are built while a worker starts: once on a machine, all at once, with what is said."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.kernels.flashinfer import builds
from engine.kernels.flashinfer.builds import BuildFailed, build_missing, one_at_a_time
from engine.kernels.flashinfer.causal_sources import causal_sources


@dataclass
class Build:
    """flashinfer's `JitSpec`, of a library that a shell builds."""

    folder: Path
    name: str

    @property
    def library(self) -> Path:
        return self.folder / f"{self.name}.so"

    @property
    def is_compiled(self) -> bool:
        return self.library.exists()

    @property
    def ninja_path(self) -> Path:
        return self.folder / f"{self.name}.ninja"

    def write_ninja(self) -> None:
        self.ninja_path.write_text(self.name)


NINJA = """#!/bin/sh
# ninja -C folder -f file -j jobs
echo "$@" >> $2/calls
for file in $(sed -n 's/^subninja //p' "$4"); do
    test "$(cat $file)" = broken && { echo "broken.cu(1): error: identifier undefined"; exit 1; }
    sleep 0.3
    touch "${file%.ninja}.so"
done
"""


@pytest.fixture
def ninja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where a program called ninja is, which writes how it was called to the file `calls`."""
    program = tmp_path / "bin" / "ninja"
    program.parent.mkdir()
    program.write_text(NINJA)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_what_a_machine_lacks_is_built_by_one_ninja_and_said(
    ninja: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_JOBS", "7")
    wanted = {name: Build(ninja, name) for name in ("FA2", "FA3", "prebuilt")}
    wanted["prebuilt"].library.touch()
    said: list[str] = []
    with caplog.at_level(logging.INFO):
        build_missing(wanted, ninja, said.append)
    assert all(build.is_compiled for build in wanted.values())
    [call] = calls(ninja)
    assert call.endswith("-j 7")
    assert "prebuilt" not in (ninja / "baton.ninja").read_text()
    assert said[0] == "FA2: 0 of 2, 0 s"
    assert any(line.startswith("FA3: 1 of 2") for line in said)
    assert "compiling kernels, once on this machine: FA2; FA3" in caplog.text


def test_nothing_is_run_or_said_where_nothing_is_missing(
    ninja: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = Build(ninja, "there")
    there.library.touch()
    with caplog.at_level(logging.INFO):
        build_missing({"there": there}, ninja, lambda said: pytest.fail(said))
    assert not (ninja / "calls").exists()
    assert not caplog.records


def test_workers_of_a_machine_build_everything_once(ninja: Path) -> None:
    wanted = {name: Build(ninja, name) for name in ("FA2", "FA3")}
    threads = [
        threading.Thread(target=build_missing, args=(wanted, ninja, lambda said: None)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls(ninja)) == 1


def test_who_waits_for_another_process_says_how_far_it_is(ninja: Path) -> None:
    build, said = Build(ninja, "FA3"), list[str]()
    with one_at_a_time(ninja / "baton.lock"):
        waiter = threading.Thread(target=build_missing, args=({"FA3": build}, ninja, said.append))
        waiter.start()
        while not said:
            time.sleep(0.01)
        build.library.touch()
        while not said[-1].startswith("done: 1 of 1"):
            time.sleep(0.01)
        assert said[0] == "FA3: 0 of 1, 0 s"
        assert waiter.is_alive()
    waiter.join()
    assert not (ninja / "calls").exists()


def test_the_last_words_of_a_compiler_are_the_error(ninja: Path) -> None:
    wanted = {name: Build(ninja, name) for name in ("FA2", "broken")}
    with pytest.raises(BuildFailed, match="identifier undefined"):
        build_missing(wanted, ninja, lambda said: None)
    wanted["broken"].library.touch()
    build_missing(wanted, ninja, lambda said: None)  # the lock is free again


def test_a_machine_without_ninja_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildFailed, match="ninja"):
        build_missing({"FA2": Build(tmp_path, "FA2")}, tmp_path, lambda said: None)


def test_as_many_compilers_run_as_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAX_JOBS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 1000)
    monkeypatch.setattr(Path, "read_text", lambda path: f"MemTotal: 1 kB\nMemAvailable:   {9 << 20} kB\n")
    assert builds._jobs() == 2


CONFIG = """#pragma once
#define DISPATCH_context(DTypeQ, MASK_MODE, ...) \\
  DISPATCH_MASK_MODE(mask_mode, MASK_MODE, { __VA_ARGS__(); })
"""
PAGED = """#include <flashinfer/attention/prefill.cuh>
#include "batch_prefill_config.inc"
namespace flashinfer {

template cudaError_t Dispatched<
    16, MaskMode::kCausal>(PagedParams params);

template cudaError_t Dispatched<
    128, MaskMode::kCausal>(PagedParams params);

};  // namespace flashinfer
"""
GENERATED = {
    "batch_prefill_config.inc": CONFIG,
    "batch_prefill.cu": "main",
    **{f"batch_prefill_paged_kernel_mask_{mask}.cu": PAGED for mask in range(4)},
    **{f"batch_prefill_ragged_kernel_mask_{mask}.cu": PAGED.replace("Paged", "Ragged") for mask in range(4)},
}


def test_a_causal_library_has_a_file_for_each_kernel_and_no_other_masks() -> None:
    sources = causal_sources(GENERATED, ragged=True)
    assert sorted(sources) == [
        "batch_prefill.cu",
        "batch_prefill_config.inc",
        "batch_prefill_paged_kernel_mask_1_0.cu",
        "batch_prefill_paged_kernel_mask_1_1.cu",
        "batch_prefill_ragged_kernel_mask_1_0.cu",
        "batch_prefill_ragged_kernel_mask_1_1.cu",
    ]
    parts = [sources[f"batch_prefill_paged_kernel_mask_1_{part}.cu"] for part in range(2)]
    assert [part.count("template cudaError_t") for part in parts] == [1, 1]
    assert "16, " in parts[0]
    assert "128, " in parts[1]
    assert all(part.startswith("#include <flashinfer/attention/prefill.cuh>") for part in parts)
    assert all(part.rstrip().endswith("};  // namespace flashinfer") for part in parts)
    assert "DISPATCH_CAUSAL(mask_mode, MASK_MODE, {" in sources["batch_prefill_config.inc"]
    assert "DISPATCH_MASK_MODE(" not in sources["batch_prefill_config.inc"]


def test_kernels_that_are_not_called_are_stubs() -> None:
    sources = causal_sources(GENERATED, ragged=False)
    stub = sources["batch_prefill_ragged_kernel_mask_1.cu"]
    assert "prefill.cuh" not in stub
    assert "return cudaErrorNotSupported;" in stub
    assert stub.count("template cudaError_t") == 2


def test_another_version_of_the_sources_is_refused() -> None:
    changed = CONFIG.replace("DISPATCH_MASK_MODE", "DISPATCH_MASK")
    with pytest.raises(ValueError, match="dispatches on masks in another way"):
        causal_sources(GENERATED | {"batch_prefill_config.inc": changed}, ragged=True)
