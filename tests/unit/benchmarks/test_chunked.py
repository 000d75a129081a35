"""The benchmark of chunk sizes: every setting is measured, and results say what they were made with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import chunked
from benchmarks.lib.engines.chunk_engines import Setting, scheduler_of
from benchmarks.lib.provenance import provenance
from engine.config import Batching, SchedulerConfig


def test_a_run_writes_every_setting_at_every_load_and_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.json"
    flags = "--chunks=256,-1 --scales 0,0.5 --requests 5 --repeats 2 --output-length 4 --long 0"
    monkeypatch.setattr(sys, "argv", ["chunked", *flags.split(), "--output", str(output)])
    chunked.main()
    content = json.loads(output.read_text())
    assert [(p["chunk"], p["load"]) for p in content["points"]] == [(256, 0), (256, 0.5), (-1, 0), (-1, 0.5)]
    assert all(p["summary"]["succeeded"] == 10 for p in content["points"])
    assert content["made_with"]["revision"]
    assert output.with_suffix(".png").stat().st_size > 1000


def test_settings_differ_in_chunks_and_mixing_alone() -> None:
    base = SchedulerConfig(max_running_requests=7, itl_target_s=0.02)
    small = scheduler_of(Setting(64, Batching.PREFILL_FIRST), base)
    assert (small.chunk_budget, small.chunked_prefill, small.batching) == (64, True, Batching.PREFILL_FIRST)
    whole = scheduler_of(Setting(-1, Batching.MIXED), base)
    assert (whole.chunk_budget, whole.chunked_prefill, whole.max_running_requests) == (None, False, 7)
    assert small.itl_target_s is whole.itl_target_s is None, "a target would choose the chunks itself"


def test_provenance_names_revision_versions_and_machine() -> None:
    found = provenance()
    assert found["packages"]["torch"]
    assert found["machine"]
    assert isinstance(found["busy"], bool)


@pytest.mark.parametrize("width", ["80", "200"])
def test_no_number_of_the_table_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    flags = "--chunks=64,-1 --scales 1 --requests 3 --repeats 1 --output-length 4 --long 0.5"
    monkeypatch.setattr(sys, "argv", ["chunked", *flags.split()])
    chunked.main()
    table = capsys.readouterr().out
    assert "TTFT p50" in table
    assert "…" not in table


@pytest.mark.parametrize("device", ["simulator", "cpu", "cuda"])
def test_quick_has_defaults_for_every_device_and_what_is_given_stands(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["chunked", "--device", device, "--quick", "--rate", "3"])
    options = chunked._options()
    assert options.rate == 3
    assert options.chunks == chunked._QUICK[device]["chunks"]
