"""The first word of the `router` command."""

from __future__ import annotations

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
