"""Lines of prefill chunks at debug, and the requests that start with one token."""

from __future__ import annotations

import logging
import re

import pytest

from tests.unit.engine.engines import make_engine, make_request, run


def test_every_chunk_is_a_debug_line_in_the_words_of_vllm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="engine.sched.plan_log")
    run(make_engine(), make_request(1, list(range(40))))
    found = [
        tuple(
            map(
                int,
                re.findall(r"(?:num_computed_tokens|num_scheduled_tokens|num_prompt_tokens): (\d+)", line),
            )
        )
        for line in caplog.messages
        if line.startswith("Chunked prefill. request: 1,")
    ]
    assert found == [(0, 16, 40), (16, 16, 40), (32, 8, 40)]


def test_at_info_there_are_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="engine.sched.plan_log")
    run(make_engine(), make_request(1, list(range(40))))
    assert not caplog.messages


def test_a_step_says_which_prompts_begin_with_their_last_token() -> None:
    engine = make_engine()
    prompt = list(range(13))  # three whole pages of 4, and a token
    run(engine, make_request(1, prompt))
    for request in (make_request(2, prompt), make_request(3, [*prompt, 7, 8]), make_request(4, [50])):
        engine.submit(request)
    output = engine.step()
    assert (output.num_prompts, output.num_single) == (1, 2)
    assert {request.id for request in output.started} == {2, 3, 4}
    assert engine.step().num_single == 0
