"""The router with the plan of another system: the same tokens, its log lines, and where the time went.

tests/unit/router/cluster/test_scheduler_plan.py compares the flags of all presets with the workers' settings,
tests/integration/test_scheduler_presets.py their tokens with transformers'.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.conftest import NUM_TOKENS, Oracle
from tests.e2e.router_process import RouterProcess, router

NAMES = ("a question", "300 tokens", "code")
FLAGS = "--preset sglang --chunked-prefill-size 128 --tp-size 1 --max-total-tokens 4096"


@pytest.mark.thorough
def test_a_preset_answers_as_transformers_and_logs_as_the_guides_expect(
    tmp_path: Path, oracle: Oracle
) -> None:
    flags = (*FLAGS.split(), "--log-workers", "--decode-log-interval", "4", "--admin-port", "0")
    with router(tmp_path / "log", *flags) as service:
        service.wait_until_ready()

        def complete(name: str) -> dict:
            return service.complete(oracle.prompts[name], NUM_TOKENS, min_tokens=NUM_TOKENS, timings=True)

        with ThreadPoolExecutor(len(NAMES)) as clients:
            answers = dict(zip(NAMES, clients.map(complete, NAMES), strict=True))
        for name, answer in answers.items():
            assert answer["choices"][0]["text"] == oracle.text(name), name
        chunks = answers["300 tokens"]["timings"]["chunks"]
        assert len(chunks) >= 3
        assert sum(chunk["num_tokens"] for chunk in chunks) == len(oracle.prompts["300 tokens"])
        assert "chunks of" in explained(service, answers["300 tokens"]["id"])
    log = service.text()
    sizes = [int(size) for size in re.findall(r"Prefill batch\. #new-seq: \d+, #new-token: (\d+),", log)]
    assert max(sizes) <= 128
    assert re.search(r"Decode batch\. #running-req: \d+.*gen throughput \(token/s\): [\d.]+", log)
    assert re.search(r"decode-0: Chunked prefill is enabled.* chunked_prefill_size=128, .*page_size=1,", log)


def explained(service: RouterProcess, request: str) -> str:
    command = Path(sys.executable).with_name("router")
    port = re.findall(r"--admin-port (\d+)", service.text())[-1]
    done = subprocess.run(
        [command, "explain", request, "--admin-port", port], capture_output=True, text=True, check=True
    )
    return done.stdout
