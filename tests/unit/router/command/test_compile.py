"""`router compile` compiles what the workers of its flags would, and exits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.model_config.shard import Shard
from router.command import compile as compiling
from router.command.main import main
from router.config.flags.command_line import parse
from tests.unit.tiny import save_tiny_llama
from worker.compile_kernels import _FirstRank
from worker.config import WorkerRole


def test_the_kernels_for_a_processor_are_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_llama(tmp_path)
    monkeypatch.setattr("engine.kernels.cpu.build.compile_library", lambda library: library.touch())
    monkeypatch.setattr("worker.compile_kernels.cpu_kernels", lambda dtype: built.append(dtype))
    built: list[torch.dtype] = []
    status = main(["compile", "--model", str(tmp_path), "--device", "cpu", "--dtype", "float32"])
    assert status == 0
    assert built == [torch.float32]
    assert "all kernels are there" in capsys.readouterr().err


def test_there_is_one_worker_of_each_role(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    flags = ["--model", str(tmp_path), "--device", "cpu", "--dtype", "float32", "--decode-workers", "3"]
    assert [w.role for w in compiling.workers_of(parse(flags))] == [WorkerRole.DECODE]
    both = compiling.workers_of(parse([*flags, "--mode", "disagg", "--prefill-workers", "2"]))
    assert [w.role for w in both] == [WorkerRole.PREFILL, WorkerRole.DECODE]


def test_what_cannot_be_compiled_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--model", "/no/such/folder"]) == 1
    assert capsys.readouterr().err.startswith("router compile: ")
    assert main(["compile", "--no-such-flag"]) == 2


def test_a_rank_without_the_others_computes_tensors_of_their_shape() -> None:
    rank = _FirstRank(Shard(0, 4))
    assert rank.gather_columns(torch.ones(2, 5), 18).shape == (2, 18)
    assert rank.shard.size == 4
    assert rank.all_reduce_min(7) == 7
