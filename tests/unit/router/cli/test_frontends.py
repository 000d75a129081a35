"""A front end gets every setting of its command, through a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from router.cli.frontends import _as_file
from router.config.flags.command_line import parse


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
    config = parse(["--model", "smollm2", *line.replace("'", "").split()])
    file = tmp_path / "settings"
    file.write_text(yaml.safe_dump(_as_file(config)))
    assert parse(["--config", str(file)]) == config
