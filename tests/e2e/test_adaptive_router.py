"""Adaptive mode as a process, with real Ray, gRPC, UCX and model; and how it outlives its workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import NUM_TOKENS, TEXTS, Oracle
from tests.e2e.router_process import router
from tests.e2e.streaming import Streaming

ADAPTIVE = ("--mode", "adaptive", "--prefill-workers", "1", "--decode-workers", "1")
NAME = "300 tokens"


@pytest.mark.thorough
def test_a_stream_continues_and_new_requests_are_served_whichever_worker_is_killed(
    tmp_path: Path, oracle: Oracle
) -> None:
    with router(tmp_path / "log", *ADAPTIVE) as service:
        service.wait_until_ready()
        for role in ("PrefillWorker", "DecodeWorker"):
            service.wait_until_all_workers_are_back()
            stream = Streaming(service, TEXTS[NAME], NUM_TOKENS, min_tokens=NUM_TOKENS)
            stream.wait_for_chunks(3)
            (worker,) = service.workers(role)
            worker.kill()
            assert stream.finish() == oracle.text(NAME)
            answer = service.complete(TEXTS[NAME], NUM_TOKENS, min_tokens=NUM_TOKENS)
            assert answer["choices"][0]["text"] == oracle.text(NAME)
