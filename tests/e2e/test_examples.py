"""Every script in examples/, as its first lines say, against one router."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.router_process import SharedRouter

ROOT = Path(__file__).resolve().parents[2]
PRINTS = {
    "stream_chat.py": r"relay race.*\n\d+ prompt tokens, \d+ output tokens\n$",
    "tools.py": r'^call: weather \{"city": "(Paris|Rome)", "unit": "\w+"\}\nanswer: .',
    "structured_output.py": r"^sport='\w+' runners=\d+ with_baton=(True|False)\n(yes|no)\n$",
    "timings.py": r"^\d+ prompt tokens, \d+ output tokens\n(.*\n)*prefill_s +\d+\.\d ms\n(.*\n)*e2e_s +\d",
    "offline.py": r"^'The capital of France is' -> '.+\n'A relay race is' -> '.+\n$",
}
"""What each script prints."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRouter]:
    with SharedRouter(tmp_path_factory.mktemp("mixed"), "--mode", "mixed", "--decode-workers", "1") as shared:
        yield shared


def run(*command: str | Path, **environment: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "PATH": path, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_script_has_a_test() -> None:
    assert {path.name for path in (ROOT / "examples").iterdir()} == {*PRINTS, "batch.sh", "requests.jsonl"}


@pytest.mark.thorough
@pytest.mark.parametrize("script", PRINTS)
def test_a_script_prints_what_it_promises(shared: SharedRouter, script: str) -> None:
    printed = run(sys.executable, ROOT / "examples" / script, OPENAI_BASE_URL=f"{shared.get().url}/v1")
    assert re.search(PRINTS[script], printed, re.DOTALL if script == "stream_chat.py" else 0), printed


@pytest.mark.thorough
def test_a_batch_has_an_answer_for_each_request(shared: SharedRouter, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    printed = run("sh", ROOT / "examples" / "batch.sh", answers, shared.get().url)
    assert len(printed.splitlines()) == len((ROOT / "examples" / "requests.jsonl").read_text().splitlines())
    assert all('"status_code": 200' in line for line in printed.splitlines())
