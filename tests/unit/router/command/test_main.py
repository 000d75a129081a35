"""The first word of the `router` command."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys

import pytest

import baton
from router.command.main import _OTHERS, COMMANDS, main
from router.command.words import ANSWERS


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
        command = (sys.executable, "-m", "router.command.main", "--model", "smollm2", "--http-port", port)
        run = subprocess.run(
            [*command, "--log-format", "json"], capture_output=True, text=True, check=False, timeout=120
        )
    assert run.returncode == 1
    lines = [json.loads(line) for line in run.stderr.splitlines()]
    assert lines[-1]["level"] == "error"
    assert f"--http-port {port} on 127.0.0.1 cannot be used" in lines[-1]["message"]


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("status", "`router workers`"),
        ("reload", "`router restart all`"),
        ("bench", "benchmarks.load"),
        ("ls", "`router workers`"),
        ("models", "GET /v1/models"),
        ("collect-env", "`router doctor`"),
        ("complete", "`router chat`"),
        ("launch_server", "`router serve MODEL`"),
    ],
)
def test_a_command_of_another_program_is_answered_with_ours(
    capsys: pytest.CaptureFixture[str], word: str, answer: str
) -> None:
    for arguments in ([word], [word, "--help"]):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"router: {word} is not a command: ")
        assert answer in said


def test_answers_name_commands_that_exist_and_none_of_them_is_answered() -> None:
    for answer in ANSWERS.values():
        for command in re.findall(r"`router ([\w-]+)", answer):
            assert command in {*COMMANDS, *_OTHERS, "serve"}
    assert not ANSWERS.keys() & {*COMMANDS, *_OTHERS, "serve", "help", "version"}


@pytest.mark.parametrize("arguments", [["help"], ["--help"], ["serve", "--help"]])
def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "usage: router" in capsys.readouterr().out


def test_help_of_a_command_is_that_of_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["help", "drain"])
    assert ended.value.code == 0
    assert "usage: router drain" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["version"], ["--version"], ["serve", "--version"]])
def test_the_version_is_told(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"baton {baton.__version__}\n"
