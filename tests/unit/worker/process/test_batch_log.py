"""The batch lines of a worker's log, read with the greps of SGLang's guides."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.log_format import TEXT, formatter
from engine.core.events import Occupancy, StepOutput, TokenOut
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from worker.process.batch_log import BatchLog, PaceLog

PREFILL_LINE = (
    "Prefill batch. #new-seq: 2, #new-token: 2040, #cached-token: 32, token usage: 0.25, #running-req: 8,"
    " #queue-req: 3"
)
DECODE_LINE = (
    "Decode batch. #running-req: 10, #token: 4000, token usage: 0.25, gen throughput (token/s): 50.00,"
    " #queue-req: 3"
)


def occupancy(running: int = 10) -> Occupancy:
    return Occupancy(waiting=3, running=running, used_pages=250, total_pages=1000)


def request(cached: int = 0) -> Request:
    return Request(1, [1], SamplingParams(max_tokens=8), num_cached=cached)


def prefill() -> StepOutput:
    return StepOutput(
        started=[request(cached=16), request(cached=16)], num_tokens=2048, num_prompts=2, prompt_tokens=2040
    )


def decode(tokens: int = 10) -> StepOutput:
    return StepOutput(
        tokens=[TokenOut(request(), 7, 0, None, None) for _ in range(tokens)],
        num_tokens=tokens,
        completed=True,
    )


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="worker.process.batch_log")
    return caplog


def test_a_step_with_prompts_is_one_line_in_the_words_of_sglang(lines: pytest.LogCaptureFixture) -> None:
    BatchLog(40, page_size=16).on_step(prefill(), occupancy(), 0.0, 0.1)
    (line,) = lines.records
    assert line.getMessage() == PREFILL_LINE


def test_decode_steps_are_logged_at_an_interval_with_their_throughput(
    lines: pytest.LogCaptureFixture,
) -> None:
    batches = BatchLog(4, page_size=16)
    for step in range(8):
        batches.on_step(decode(), occupancy(), step * 0.2, (step + 1) * 0.2)
    assert [line.getMessage() for line in lines.records] == [DECODE_LINE] * 2


def test_time_without_work_does_not_count_against_the_throughput(lines: pytest.LogCaptureFixture) -> None:
    batches = BatchLog(2, page_size=16)
    batches.on_step(decode(), occupancy(), 0.0, 0.1)
    batches.rest()
    batches.on_step(decode(), occupancy(), 1000.0, 1000.1)
    assert "gen throughput (token/s): 100.00" in lines.records[0].getMessage()


def test_the_lines_can_be_turned_off(lines: pytest.LogCaptureFixture) -> None:
    batches = BatchLog(0, page_size=16)
    for _ in range(100):
        batches.on_step(prefill(), occupancy(), 0.0, 0.1)
        batches.on_step(decode(), occupancy(), 0.1, 0.2)
    assert not lines.records


@pytest.fixture
def log() -> Iterator[str]:
    """A worker's log as it is in its file, with timestamps."""
    file, logger = io.StringIO(), logging.getLogger("worker.process.batch_log")
    handler, level = logging.StreamHandler(file), logger.level
    handler.setFormatter(formatter(TEXT))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        batches = BatchLog(1, page_size=16)
        batches.on_step(prefill(), occupancy(), 0.0, 0.1)
        batches.on_step(decode(), occupancy(), 0.1, 0.2)
        yield file.getvalue()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("grep -c 'Prefill batch'", "1"),
        ("grep -c 'Decode batch'", "1"),
        ("grep -oE '#new-token: [0-9]+'", "#new-token: 2040"),
        ("grep 'Prefill batch' | grep -oP '#queue-req: \\K\\d+'", "3"),
        ("grep 'Prefill batch' | grep -oP 'token usage: \\K[0-9.]+'", "0.25"),
        ("grep -oP 'gen throughput \\(token/s\\): \\K[0-9.]+'", "50.00"),
        ("grep 'Decode batch' | grep -oP '#running-req: \\K\\d+'", "10"),
        ("grep 'Decode batch' | sed 's/.*Decode batch/Decode batch/' | awk -F'[:,]' '{print $2}'", " 10"),
    ],
)
def test_the_greps_of_the_guides_find_what_they_look_for(log: str, command: str, found: str) -> None:
    out = subprocess.run(["sh", "-c", command], input=log, capture_output=True, text=True, check=True).stdout
    assert out == found + "\n"


def test_the_patterns_of_log_parsers_match(log: str) -> None:
    pattern = r"Decode batch.*#running-req:\s*(\d+).*gen throughput \(token/s\): ([\d.]+)"
    match = re.search(pattern, log)
    assert match is not None
    assert match.groups() == ("10", "50.00")


def test_a_json_line_has_the_same_numbers_as_fields(lines: pytest.LogCaptureFixture) -> None:
    BatchLog(40, page_size=16).on_step(prefill(), occupancy(), 0.0, 0.1)
    fields = json.loads(formatter("json").format(lines.records[0]))
    assert {
        name: fields[name] for name in ("event", "new_seqs", "new_tokens", "cached_tokens", "decodes")
    } == {
        "event": "prefill_batch",
        "new_seqs": 2,
        "new_tokens": 2040,
        "cached_tokens": 32,
        "decodes": 8,
    }
    assert (fields["level"], fields["logger"]) == ("info", "worker.process.batch_log")
    assert formatter(TEXT).format(lines.records[0]).endswith(lines.records[0].getMessage())


def test_an_exception_stays_on_one_json_line() -> None:
    error = ValueError("two\nlines")
    trouble = (type(error), error, None)
    record = logging.LogRecord("a", logging.ERROR, "f", 1, "it %s", ("failed",), trouble)
    line = formatter("json").format(record)
    assert "\n" not in line
    assert "two\nlines" in json.loads(line)["exception"]


def test_the_log_reports_when_the_itl_target_shrinks_chunks_and_when_they_are_whole_again(
    lines: pytest.LogCaptureFixture,
) -> None:
    lines.set_level(logging.INFO, logger="worker.process.batch_log")
    batches = BatchLog(0, page_size=16, pace=PaceLog(8192, itl_target_s=0.02))
    for paced in (8000, 5000, 4000, 3500, 1000, 900, 1500, 4096, 8192, 8192):
        batches.on_step(prefill(), replace(occupancy(), paced_tokens=paced), 0.0, 0.1)
    said = [line.getMessage().partition("up to ")[2] for line in lines.records]
    assert said == [f"{paced} of 8192 tokens" for paced in (4000, 1000, 4096, 8192)]
    assert lines.records[0].getMessage().startswith("ITL target 20 ms: prefill chunks beside decodes")


def test_steps_without_decodes_say_nothing_about_the_target(lines: pytest.LogCaptureFixture) -> None:
    lines.set_level(logging.INFO, logger="worker.process.batch_log")
    alone = StepOutput(num_tokens=512, num_prompts=1, prompt_tokens=512)
    batches = BatchLog(0, page_size=16, pace=PaceLog(8192, itl_target_s=0.02))
    batches.on_step(alone, replace(occupancy(), paced_tokens=512), 0.0, 0.1)
    assert not lines.records


def test_a_prompt_of_which_one_token_is_left_is_a_line_with_its_cached_tokens(
    lines: pytest.LogCaptureFixture,
) -> None:
    cached = StepOutput(started=[request(cached=4095)], num_tokens=9, num_single=1)
    BatchLog(40, page_size=16).on_step(cached, occupancy(), 0.0, 0.1)
    (line,) = lines.records
    assert "#new-seq: 1, #new-token: 1, #cached-token: 4095," in line.getMessage()
    assert "#running-req: 9," in line.getMessage()
