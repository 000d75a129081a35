"""The first word of the `router` command."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from router.cli.main import main


@pytest.mark.parametrize(("word", "command"), [("wrokers", "workers"), ("drian", "drain"), ("plna", "plan")])
def test_a_mistyped_command_is_not_taken_for_a_model(
    capsys: pytest.CaptureFixture[str], word: str, command: str
) -> None:
    assert main([word]) == 2
    assert f"did you mean `router {command}`?" in capsys.readouterr().err


def test_serve_alone_asks_for_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "--model is missing" in capsys.readouterr().err


def test_the_reason_of_a_failed_start_has_the_format_of_the_log() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = (sys.executable, "-m", "router.cli.main", "--model", "smollm2", "--http-port", port)
        run = subprocess.run(
            [*command, "--log-format", "json"], capture_output=True, text=True, check=False, timeout=120
        )
    assert run.returncode == 1
    lines = [json.loads(line) for line in run.stderr.splitlines()]
    assert lines[-1]["level"] == "error"
    assert f"--http-port {port} on 127.0.0.1 cannot be used" in lines[-1]["message"]
