"""The load generator against a server whose every delay is known."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.lib.client import Api, Target
from benchmarks.lib.report import summarize
from benchmarks.lib.workload import Fixed, Work, make_workload
from benchmarks.load import offer
from benchmarks.long_prefill import Outcome, interrupt
from tests.integration.fake_openai_server import FakeServer, running


def some_work(count: int, rate: float = math.inf, as_text: bool = False) -> list[Work]:
    return make_workload(
        count=count, rate=rate, input_lengths=Fixed(12), output_lengths=Fixed(5), as_text=as_text
    )


@pytest.mark.parametrize("api", Api)
async def test_every_answer_is_timed_token_by_token(api: Api) -> None:
    with running(FakeServer(interval_s=0.02)) as server:
        target = Target(server.url, "fake", api)
        records = await offer(target, some_work(4, as_text=api is Api.CHAT))
    assert [record.error for record in records] == [None] * 4
    assert all(len(record.arrivals) == 5 and record.output_tokens == 5 for record in records)
    assert all(0.02 <= record.ttft < record.e2e for record in records)
    summary = summarize(records)
    assert summary.output_tokens == 20
    assert 0.018 < summary.itl.p50 < 0.06


async def test_requests_are_sent_at_their_own_time_not_after_earlier_answers() -> None:
    with running(FakeServer(interval_s=0.3)) as server:
        workload = [Work(arrival, [1, 2, 3], 3) for arrival in (0.0, 0.3, 0.6)]
        records = await offer(Target(server.url, "fake"), workload)
    sent = [record.sent - records[0].sent for record in records]
    assert sent == pytest.approx([0.0, 0.3, 0.6], abs=0.2)
    assert server.most_at_once >= 2


async def test_max_concurrency_holds_requests_back() -> None:
    with running(FakeServer(interval_s=0.01)) as server:
        records = await offer(Target(server.url, "fake"), some_work(8), max_concurrency=2)
    assert server.most_at_once <= 2
    assert all(record.error is None for record in records)


async def test_an_error_of_the_server_is_recorded_with_its_message() -> None:
    with running(FakeServer()) as server:
        (record,) = await offer(Target(server.url, "other"), some_work(1))
    assert record.error is not None
    assert "404" in record.error
    assert "no model other" in record.error


async def test_a_server_that_is_not_there_is_an_error_of_each_request() -> None:
    records = await offer(Target("http://127.0.0.1:9", "fake"), some_work(2))
    assert all(record.error and "Connect" in record.error for record in records)


def test_the_command_line_finds_the_model_and_writes_its_results(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    with running(FakeServer()) as server:
        options = [
            "--base-url",
            server.url,
            "--requests",
            "6",
            "--rate",
            "100",
            "--output-length",
            "uniform:2:4",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.load", *options, "--output", str(results)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stdout
    assert "6 answered, 0 failed" in done.stdout
    assert json.loads(results.read_text())["summary"]["succeeded"] == 6
    assert all(body["ignore_eos"] and body["temperature"] == 0.0 for body in server.bodies)


async def test_the_long_prompt_is_sent_when_every_answer_streams() -> None:
    decodes = [Work(0.0, [1, 2, 3], max_tokens=40) for _ in range(3)]
    with running(FakeServer(interval_s=0.01)) as server:
        answers, long = await interrupt(Target(server.url, "fake"), decodes, Work(0.0, [5] * 1000, 1))
    for answer in answers:
        before = [arrival for arrival in answer.arrivals if arrival < long.sent]
        assert 8 <= len(before) < 40
    assert Outcome(None, answers, long).itl.p50 == pytest.approx(0.01, rel=0.8)


async def test_answers_that_fail_end_the_measurement() -> None:
    with running(FakeServer()) as server, pytest.raises(SystemExit, match="no model other"):
        await interrupt(Target(server.url, "other"), [Work(0.0, [1], 20)], Work(0.0, [1], 1))
