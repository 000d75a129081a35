"""The load generator against a server that speaks when the test lets it."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.lib.load.client import Api, Record, Target, open_client, send
from benchmarks.lib.load.offer import offer
from benchmarks.lib.load.workload import Fixed, Work, make_workload
from benchmarks.lib.report import summarize
from tests.integration.fake_openai_server import FakeServer, running


def some_work(count: int, rate: float = math.inf, as_text: bool = False) -> list[Work]:
    return make_workload(
        count=count, rate=rate, input_lengths=Fixed(12), output_lengths=Fixed(5), as_text=as_text
    )


class Arrivals(list[float]):
    """Counts into a semaphore what is appended."""

    def __init__(self) -> None:
        super().__init__()
        self.read = threading.Semaphore(0)

    def append(self, arrival: float) -> None:
        super().append(arrival)
        self.read.release()


@pytest.mark.parametrize("api", Api)
async def test_every_token_is_timed_when_it_arrives(api: Api) -> None:
    """The server sends a word when the word before it has been timed: a client that waits for more hangs."""
    arrivals = Arrivals()

    async def until_the_last_word_is_timed(number: int) -> None:
        assert number == 0 or await asyncio.to_thread(arrivals.read.acquire, timeout=30.0)

    (work,) = some_work(1, as_text=api is Api.CHAT)
    with running(FakeServer(hold=until_the_last_word_is_timed)) as server:
        target = Target(server.url, "fake", api)
        async with open_client(target) as client:
            record = await send(client, target, work, Record(arrivals=arrivals))
    assert record.error is None
    times = [record.sent, *record.arrivals, record.ended]
    assert len(times) == 7
    assert times == sorted(times)


async def test_every_request_has_a_record_of_its_own_times() -> None:
    with running(FakeServer(interval_s=0.02)) as server:
        records = await offer(Target(server.url, "fake"), some_work(4))
    assert [record.error for record in records] == [None] * 4
    assert all(len(record.arrivals) == 5 and record.output_tokens == 5 for record in records)
    assert all(0.02 <= record.ttft <= record.e2e for record in records)
    assert summarize(records).output_tokens == 20


async def test_requests_are_sent_at_their_own_time_not_after_earlier_answers() -> None:
    async def until_all_three_are_here(_: int) -> None:
        while server.most_at_once < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    server = FakeServer(hold=until_all_three_are_here)
    with running(server):
        workload = [Work(arrival, [1, 2, 3], 3) for arrival in (0.0, 0.1, 0.2)]
        records = await offer(Target(server.url, "fake"), workload)
    assert [record.error for record in records] == [None] * 3
    assert all(after.sent - before.sent > 0.05 for before, after in pairwise(records))


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


def test_with_long_prompts_the_others_have_a_table_of_their_own() -> None:
    with running(FakeServer()) as server:
        options = ["--base-url", server.url, "--requests", "8", "--long", "0.5", "--input-length", "10"]
        done = load(*options, "--output-length", "2")
        refused = load(*options, "--shared-prefix", "5")
    lengths = [len(body["prompt"]) for body in server.bodies]
    num_long = sum(8192 <= length <= 32768 for length in lengths)
    assert 0 < num_long < 8
    assert lengths.count(10) == 8 - num_long
    assert f"{8 - num_long} answered" in done.stdout
    assert "--long" in refused.stderr


def load(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.load", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


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
        done = load(*options, "--output", str(results))
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stdout
    assert "6 answered, 0 failed" in done.stdout
    assert json.loads(results.read_text())["summary"]["succeeded"] == 6
    assert all(body["ignore_eos"] and body["temperature"] == 0.0 for body in server.bodies)
