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
