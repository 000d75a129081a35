"""Baton as an application of Ray Serve, in an environment with Serve's packages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.faults.support.small_model import save_small_model

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ENVIRONMENT = Path(os.environ.get("BATON_CLIENTS", HERE.parents[1] / ".clients"))
PYTHON = ENVIRONMENT / "ray-serve" / "bin" / "python"
TOKENS = 24


def test_an_application_answers_as_transformers_does_and_a_new_replica_finds_the_workers(
    tmp_path: Path,
) -> None:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is missing: run make test-clients")
    small = save_small_model(tmp_path)
    questions = [small.question(seed, length=40, max_tokens=TOKENS) for seed in range(3)]
    ended = subprocess.run(
        [PYTHON, HERE / "ray_serve_app.py", tmp_path, str(free_port())],
        input=json.dumps([question.prompt for question in questions]),
        capture_output=True,
        text=True,
        timeout=400,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("SEEN ")]
    seen, right = json.loads(line.removeprefix("SEEN ")), [small.answer(question) for question in questions]
    assert [model["id"] for model in seen["models"]] == ["small"]
    assert seen["whole"] == seen["streamed"] == right
    assert seen["refusal"] == 404
    assert seen["chunks_of_a_stream"] > 3
    assert seen["after"]["tokens"] == right[0]
    assert seen["after"]["cached"] > 0  # the worker and its prefix cache are those of the killed replica


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
