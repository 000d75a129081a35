"""A front end gets every setting of its command, through a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from router.config.flags.command_line import parse_models
from router.config.flags.config_file import as_file


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--mode disagg --decode-workers 3 --frontends 2 --disable-radix-cache true",
        "--preset sglang --prefill-tensor-parallel-size 2 --mode adaptive --ttft-target-ms 250.5",
        "--worker-env 'A=1' --placement spread --ray-address auto --page-size 32",
    ],
)
def test_the_settings_are_the_same_after_they_were_written_and_read(line: str, tmp_path: Path) -> None:
    configs = parse_models(["--model", "smollm2", *line.replace("'", "").split()])
    file = tmp_path / "settings"
    file.write_text(yaml.safe_dump(as_file(configs), sort_keys=False))
    assert parse_models(["--config", str(file)]) == configs


def test_the_settings_of_several_models_are_the_same_after_they_were_written_and_read(tmp_path: Path) -> None:
    line = "--model a=smollm2 --model b=llama --frontends 2 --mode adaptive --ray-address auto --page-size 32"
    configs = parse_models(line.split())
    file = tmp_path / "settings"
    file.write_text(yaml.safe_dump(as_file(configs), sort_keys=False))
    assert parse_models(["--config", str(file)]) == configs


def test_a_front_end_whose_parent_has_ended_before_does_not_start() -> None:
    code = "from router.command.frontends import end_with_parent; end_with_parent({})"
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    for parent, status in ((os.getpid(), 0), (int(gone.stdout), 1)):
        assert subprocess.run([sys.executable, "-c", code.format(parent)]).returncode == status
