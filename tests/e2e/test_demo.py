"""`make demo`, as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.lib.servers.server import BatonServer, ServerFailed

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_demo_streams_an_answer_shows_the_waterfall_and_leaves_nothing_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.demo"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    (prompt_tokens,) = re.findall(r"([\d,]+) prompt tokens", text)
    assert int(prompt_tokens.replace(",", "")) > 2000
    assert "KV pushes" in text
    assert "Every process is gone." in text


def test_a_server_that_does_not_start_is_reported_with_what_it_said() -> None:
    server = BatonServer("--model", "/nowhere/at/all", "--mode", "mixed")
    with pytest.raises(ServerFailed, match="did not start") as failure:
        server.start()
    assert "/nowhere/at/all" in str(failure.value)
