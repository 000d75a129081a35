"""Clients that people use, unmodified, in environments of their own: see `make test-clients`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ENVIRONMENT = Path(os.environ.get("BATON_CLIENTS", HERE.parents[1] / ".clients"))
PYTHON = ENVIRONMENT / "sdk" / "bin" / "python"
PROGRAMS = sorted(path.name for path in (HERE / "programs").iterdir() if path.suffix in (".py", ".mjs"))


def run(program: str, *arguments: str) -> None:
    path = HERE / "programs" / program
    if path.suffix == ".py":
        if not PYTHON.exists():
            pytest.skip(f"{PYTHON} is missing: run make test-clients")
        command = [PYTHON, path]
    else:
        if not (ENVIRONMENT / "node_modules").exists():
            pytest.skip(f"{ENVIRONMENT}/node_modules is missing: run make test-clients")
        command = ["node", shutil.copy(path, ENVIRONMENT)]  # modules are looked for beside the program
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    ended = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=300, env=environment
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_client_works_with_a_model_that_calls_tools(scripted: str, program: str) -> None:
    run(program, scripted, "scripted", "small")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_client_gets_json_and_forced_calls_from_a_small_model(real: str, program: str) -> None:
    run(program, real, "real", "small")
