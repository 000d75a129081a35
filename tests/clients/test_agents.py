"""Frameworks for agents, unmodified, each in an environment of its own: see `make test-clients`."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.clients.test_clients import ENVIRONMENT, HERE

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

AGENTS = sorted(path.stem for path in (HERE / "agents").glob("*.py"))


def run(agent: str, url: str, model: str) -> None:
    python = ENVIRONMENT / agent.replace("_", "-") / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} is missing: run make test-clients")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = HERE / "agents" / f"{agent}.py"
    ended = subprocess.run(
        [python, "-P", program, url, model, "small"],  # -P: a program has the name of what it imports
        capture_output=True,
        text=True,
        timeout=300,
        env=variables,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_works_with_a_model_that_calls_tools(scripted: str, agent: str) -> None:
    run(agent, scripted, "scripted")


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_gets_forced_calls_from_a_small_model(real: str, agent: str) -> None:
    run(agent, real, "real")
