"""The whole service as a process: real Ray, real gRPC, real UCX, a real model; and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import NUM_TOKENS, TEXTS, Oracle
from tests.e2e.router_process import STARTUP_S, RouterProcess, SharedRouter, router
from tests.e2e.streaming import Streaming

MIXED = ("--mode", "mixed", "--decode-workers", "1")
DISAGG = ("--mode", "disagg", "--prefill-workers", "1", "--decode-workers", "1")
NAME, SHORT = "300 tokens", "a question"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRouter]:
    with SharedRouter(tmp_path_factory.mktemp("disagg"), *DISAGG) as shared:
        yield shared


@pytest.fixture
def disagg(shared: SharedRouter) -> RouterProcess:
    return shared.get()


def answer(service: RouterProcess, name: str = NAME) -> str:
    text: str = service.complete(TEXTS[name], NUM_TOKENS, min_tokens=NUM_TOKENS)["choices"][0]["text"]
    return text


def streaming(service: RouterProcess, name: str = NAME) -> Streaming:
    stream = Streaming(service, TEXTS[name], NUM_TOKENS, min_tokens=NUM_TOKENS)
    stream.wait_for_chunks(3)
    return stream


def test_in_mixed_mode_answers_are_transformers_own_and_sigterm_lets_a_running_one_finish(
    tmp_path: Path, oracle: Oracle
) -> None:
    with router(tmp_path / "log", *MIXED) as service:
        service.wait_until_ready()
        assert answer(service) == oracle.text(NAME)

        stream = streaming(service)
        service.look()
        # To the whole group, as `timeout`, supervisors and CI do it: Ray and the workers must not heed it.
        os.killpg(service.process.pid, signal.SIGTERM)
        assert stream.finish() == oracle.text(NAME)
        assert service.process.wait(30) == 0
        assert not service.survivors(within_s=5.0)


@pytest.mark.parametrize("role", ["PrefillWorker", pytest.param("DecodeWorker", marks=pytest.mark.thorough)])
def test_a_stream_continues_when_its_worker_is_killed(
    disagg: RouterProcess, oracle: Oracle, role: str
) -> None:
    stream = streaming(disagg)
    (worker,) = disagg.workers(role)
    worker.kill()
    assert stream.finish() == oracle.text(NAME)
    disagg.wait_until_all_workers_are_back()
    assert answer(disagg) == oracle.text(NAME)


def test_sighup_ends_nothing_if_there_are_no_files_to_read(disagg: RouterProcess, oracle: Oracle) -> None:
    stream = streaming(disagg, SHORT)
    disagg.process.send_signal(signal.SIGHUP)
    assert stream.finish() == oracle.text(SHORT)
    assert answer(disagg, SHORT) == oracle.text(SHORT)


def test_sigkill_of_the_router_breaks_its_streams_and_leaves_no_worker(
    disagg: RouterProcess, oracle: Oracle
) -> None:
    stream = streaming(disagg, SHORT)
    workers = disagg.workers("DecodeWorker") + disagg.workers("PrefillWorker")
    assert len(workers) == 2
    disagg.process.kill()
    assert oracle.text(SHORT).startswith(stream.broken_off())
    disagg.family = workers
    assert not disagg.survivors(within_s=15.0)


def test_a_model_that_does_not_exist_is_one_line_and_exit_status_1(tmp_path: Path) -> None:
    with router(tmp_path / "log", model=str(tmp_path / "nothing.gguf")) as service:
        assert service.process.wait(30) == 1
        (line,) = service.text().splitlines()
        assert line.startswith("router: there is no file or folder")


def test_sigterm_while_workers_start_ends_them_and_prints_no_trace(tmp_path: Path) -> None:
    with router(tmp_path / "log") as service:
        deadline = time.monotonic() + STARTUP_S
        while "Ray (local)" not in service.text():
            assert time.monotonic() < deadline, service.text()
            time.sleep(0.1)
            if service.text():  # Python has started
                service.process.send_signal(signal.SIGHUP)
        service.look()
        service.process.terminate()
        service.process.wait(60)
        assert service.text().endswith("interrupted while starting\n")
        assert "SIGTERM" not in service.text()  # of Ray's own handler
        assert not service.survivors(within_s=5.0)


def test_a_port_in_use_is_an_error_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with router(tmp_path / "log", "--http-port", port) as service:
            assert service.process.wait(30) == 1
            assert f"--http-port {port}" in service.text()
            assert "Ray" not in service.text()
