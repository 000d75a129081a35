"""The whole service as a process: real Ray, real gRPC, real UCX, a real model; and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from pathlib import Path

import httpx
import pytest

from tests.e2e.router_process import RouterProcess, router

MIXED = ("--mode", "mixed", "--decode-workers", "1")
DISAGG = ("--mode", "disagg", "--prefill-workers", "1", "--decode-workers", "1")
PROMPT = "The lighthouse keeper had not spoken to anyone for " * 40
GREEDY: dict[str, str] = {}
"""The answer of whichever mode ran first: the other must give the same."""


@pytest.mark.parametrize("flags", [MIXED, DISAGG], ids=["mixed", "disagg"])
def test_it_serves_both_modes_alike_and_sigterm_lets_a_running_answer_finish(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with router(tmp_path / "log", *flags) as service:
        service.wait_until_ready()
        answer = service.complete(PROMPT, 48)["choices"][0]["text"]
        assert GREEDY.setdefault(PROMPT, answer) == answer

        stream = Streaming(service, PROMPT, 48)
        stream.wait_for_chunks(3)
        service.look()
        # To the whole group, as `timeout`, supervisors and CI do it: Ray and the workers must not heed it.
        os.killpg(service.process.pid, signal.SIGTERM)
        assert stream.finish() == answer
        assert service.process.wait(30) == 0
        assert not service.survivors(within_s=1.0)


def test_sigkill_of_the_router_leaves_no_worker(tmp_path: Path) -> None:
    with router(tmp_path / "log", *DISAGG) as service:
        service.wait_until_ready()
        workers = service.workers("DecodeWorker") + service.workers("PrefillWorker")
        assert len(workers) == 2
        service.process.kill()
        service.family = workers
        assert not service.survivors(within_s=15.0)


@pytest.mark.parametrize("role", ["PrefillWorker", "DecodeWorker"])
def test_a_stream_goes_on_when_a_worker_is_killed_under_it(tmp_path: Path, role: str) -> None:
    with router(tmp_path / "log", *DISAGG) as service:
        service.wait_until_ready()
        expected = service.complete(PROMPT, 64)["choices"][0]["text"]
        stream = Streaming(service, PROMPT, 64)
        stream.wait_for_chunks(3)
        (worker,) = service.workers(role)
        worker.kill()
        assert stream.finish() == expected
        service.wait_until_all_workers_are_back()
        assert service.complete(PROMPT, 64)["choices"][0]["text"] == expected


def test_a_model_that_does_not_exist_is_one_line_and_exit_status_1(tmp_path: Path) -> None:
    with router(tmp_path / "log", model=str(tmp_path / "nothing.gguf")) as service:
        assert service.process.wait(30) == 1
        (line,) = service.text().splitlines()
        assert line.startswith("router: there is no file or folder")


def test_a_taken_port_is_noticed_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with router(tmp_path / "log", "--http-port", port) as service:
            assert service.process.wait(30) == 1
            assert f"--http-port {port}" in service.text()
            assert "Ray" not in service.text()


class Streaming:
    """A streamed completion, read on a thread of its own."""

    def __init__(self, service: RouterProcess, prompt: str, max_tokens: int) -> None:
        self._body = {
            "model": "smollm2",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
        }
        self._url = f"{service.url}/v1/completions"
        self._texts: list[str] = []
        self._grown = threading.Condition()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_for_chunks(self, count: int) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: len(self._texts) >= count, timeout=60)

    def finish(self) -> str:
        self._thread.join(120)
        assert self._error is None, self._error
        return "".join(self._texts)

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=120) as response:
                for line in response.iter_lines():
                    data = line.removeprefix("data: ")
                    if not line or data == "[DONE]":
                        continue
                    event = json.loads(data)
                    assert "error" not in event, event
                    with self._grown:
                        self._texts += [choice["text"] for choice in event["choices"]]
                        self._grown.notify_all()
        except Exception as error:
            self._error = error
