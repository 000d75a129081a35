"""`benchmarks.simulate`: schedulers given by flags of the router."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import simulate
from benchmarks.lib.engines.simulated_gpu import FlagLineError, config_of_flags
from engine.config import Policy
from engine.sched.presets import PRESETS, Preset


@pytest.mark.parametrize("preset", [preset for preset in Preset if preset is not Preset.BATON])
def test_a_preset_is_simulated_with_its_own_step_and_page_size(preset: Preset) -> None:
    config = config_of_flags(f"--preset {preset.value}")
    assert config.scheduler == PRESETS[preset].scheduler
    assert config.page_size == PRESETS[preset].page_size
    assert config.num_pages * config.page_size == config_of_flags("").num_pages * 16


def test_flags_are_those_of_the_router() -> None:
    config = config_of_flags("--preset vllm --max-num-batched-tokens 8192 --schedule-policy shortest")
    assert (config.scheduler.chunk_budget, config.scheduler.policy) == (8192, Policy.SHORTEST)
    assert config_of_flags("").scheduler.itl_target_s == 0.02
    with pytest.raises(FlagLineError, match="did you mean --schedule-policy"):
        config_of_flags("--schedule-polic fcfs")


def test_a_simulation_saves_its_command_and_the_figures_of_each_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["--preset roseinfer", ""]
    flags = [word for line in lines for word in (f"--flags={line}",)]
    output = tmp_path / "result.json"
    load = ["--rate", "inf", "--requests", "6", "--input-length", "300", "--output-length", "8"]
    monkeypatch.setattr(sys, "argv", ["simulate", *load, *flags, "--output", str(output)])
    simulate.main()
    content = json.loads(output.read_text())
    assert [each["flags"] for each in content["schedulers"]] == lines
    assert all(each["summary"]["succeeded"] == 6 for each in content["schedulers"])
    assert "--input-length 300" in content["command"]
    assert "--preset roseinfer" in capsys.readouterr().out


def test_prompts_behind_a_long_one_wait_for_it_with_fcfs_whatever_the_chunks() -> None:
    case = simulate._behind_long()
    first_tokens = {
        line: simulate._behind_row(simulate.simulate(case.works, config_of_flags(line)))[
            "TTFT of those behind, p50, ms"
        ]
        for line in ("--preset vllm --chunked-prefill-size -1", "--preset vllm", "")
    }
    whole, chunked, ours = first_tokens.values()
    assert chunked > 0.9 * whole
    assert ours < whole / 50
