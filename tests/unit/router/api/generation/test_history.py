"""What the router remembers of requests, and how `router explain` tells it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest

from common.log_format import formatter
from router.api.generation.generation import Generation
from router.api.generation.generation_request import GenerationRequest
from router.api.generation.history import CompletionRecord, History, RequestRecord
from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.served_model import ServedModel
from router.api.generation.text.tokenizer import Tokenizer
from router.command.admin.endpoint import ManagedModel, admin_app
from router.command.admin.explain import explained
from router.dispatch.token_stream import Delta
from router.errors import Overloaded, RouterError
from rpc.baton.v1 import router_pb2
from tests.integration.frontends import LENGTH, Call, ScriptedDispatcher
from tests.unit.router.api.generation.text.tokenizers import byte_level

MODEL = ServedModel(name="small", path=Path("none"), mode="mixed", max_model_len=64, vocab_size=100)
TIMINGS = router_pb2.Timings(
    queue_s=0.5,
    prefill_s=0.3,
    transfer_s=0.02,
    ttft_s=0.8,
    e2e_s=1.25,
    chunks=[router_pb2.TimingSpan(num_tokens=2048), router_pb2.TimingSpan(num_tokens=1808)],
    prefill_worker="prefill-0",
    decode_worker="decode-1",
    placement="least loaded",
    waited={"budget": 0.2, "pages": 0.3},
)


def deltas(_: Call) -> list[Delta]:
    return [Delta(token_ids=[5], cached_tokens=2), Delta(token_ids=[6], finish=LENGTH)]


def make_generation(history: History, failure: RouterError | None = None) -> Generation:
    dispatcher = ScriptedDispatcher(deltas, failure=failure, timings=TIMINGS)
    return Generation(MODEL, Tokenizer(byte_level(), vocab_size=400), dispatcher, history=history)


async def run(generation: Generation, request_id: str) -> None:
    request = GenerationRequest(id=request_id, prompts=[[1, 2, 3]], options=SamplingOptions())
    await (await generation.start(request)).serve(lambda _chunk: None)


async def test_a_finished_request_is_recorded_with_its_timings_even_without_the_timings_field() -> None:
    history = History(10)
    await run(make_generation(history), "a")
    found = history.find("a")
    assert found is not None
    assert (found["outcome"], found["prompt_tokens"], found["cached_tokens"]) == ("ok", 3, 2)
    (completion,) = found["completions"]
    assert (completion["finish"], completion["output_tokens"]) == ("length", 2)
    assert completion["waited"] == {"budget": 0.2, "pages": 0.3}


async def test_a_request_that_failed_is_remembered_with_its_error() -> None:
    history = History(10)
    with pytest.raises(Overloaded):
        await run(make_generation(history, Overloaded("the queue is full")), "full")
    found = history.find("full")
    assert found is not None
    assert found["message"] == "the queue is full"
    assert found["completions"][0]["finish"] == "unspecified"


async def test_the_oldest_requests_are_forgotten() -> None:
    history = History(2)
    generation = make_generation(history)
    for name in ("a", "b", "a", "c"):
        await run(generation, name)
    assert [history.find(name) is not None for name in ("a", "b", "c")] == [True, False, True]


async def test_the_end_of_a_request_is_one_json_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="router.api.generation.history")
    await run(make_generation(History(10)), "a")
    (record,) = caplog.records
    line = json.loads(formatter("json").format(record))
    assert (line["event"], line["request"], line["outcome"]) == ("request", "a", "ok")
    assert line["completions"][0]["ttft_s"] == 0.8
    assert line["error"] == ""
    assert line["message"].startswith("request 'a': ok, ")


async def test_a_text_log_has_one_line_with_tokens_times_and_workers_for_every_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="router.api.generation.history")
    await run(make_generation(History(10)), "a\nforged: line")
    (line,) = caplog.messages
    assert "\n" not in line
    for part in ("ok, ", " prompt tokens (", " output tokens, TTFT 0.800 s, ", "prefill-0 -> decode-1"):
        assert part in line


async def test_explain_shows_the_workers_of_a_request_and_what_it_waited_for() -> None:
    history = History(10)
    await run(make_generation(history), "a")
    found = history.find("a")
    assert found is not None
    lines = list(explained(found))
    assert lines[0].startswith("a: ok after ")
    assert [line.strip() for line in lines[1:]] == [
        "prefill-0 -> decode-1: least loaded",
        "TTFT 800.0 ms, E2E 1.25 s, 2 output tokens",
        "queue 500.0 ms",
        "pages 300.0 ms: there were no free KV pages",
        "budget 200.0 ms: the step's token budget was used up",
        "prefill 300.0 ms, chunks of 2048, 1808 tokens",
        "reserve 0.0 ms more for pages of decode-1",
        "transfer 20.0 ms more, in 0 pushes",
        "first decode 0.0 ms",
    ]


READ = router_pb2.Timings(
    queue_s=0.5,
    prefill_s=0.3,
    ttft_s=0.8,
    e2e_s=0.8,
    read_s=0.8,
    chunks=[router_pb2.TimingSpan(num_tokens=512)],
    prefill_worker="decode-1",
    decode_worker="decode-1",
    placement="soonest",
)


def test_explain_shows_the_reads_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="router.api.generation.history")
    history = History(10)
    questions = [CompletionRecord("stop", 0, READ) for _ in range(2)]
    history.add(RequestRecord("decision-1", "anybody", "ok", "", 0.8, 0, 1024, 512, questions))
    found = history.find("decision-1")
    assert found is not None
    of_one = [
        "  decode-1: soonest",
        "  read: its numbers came after 800.0 ms, without a token",
        "  queue 500.0 ms",
        "  prefill 300.0 ms, chunks of 512 tokens",
    ]
    assert list(explained(found))[1:] == ["completion 0:", *of_one, "completion 1:", *of_one]
    [line] = caplog.messages
    assert "1024 prompt tokens (512 cached), 2 reads, 0.800 s, decode-1" in line


async def test_explain_shows_how_many_drafted_tokens_were_right() -> None:
    history = History(10)
    await run(make_generation(history), "a")
    found = history.find("a")
    assert found is not None
    found["completions"][0] |= {"drafted_tokens": 9, "accepted_tokens": 4}
    assert "  drafts: 4 of 9 tokens were right" in list(explained(found))


async def test_explain_shows_where_cached_kv_came_from() -> None:
    history = History(10)
    await run(make_generation(history), "a")
    found = history.find("a")
    assert found is not None
    found["completions"][0] |= {"promoted": {"host": 512, "peer": 60}}
    assert "  cached KV came from: host (512 tokens), peer (60 tokens)" in list(explained(found))


async def test_explain_shows_the_images_that_were_encoded() -> None:
    history = History(10)
    await run(make_generation(history), "a")
    found = history.find("a")
    assert found is not None
    spans = [{"begin_s": 0.5, "end_s": 0.6, "first_token": 3, "tokens": tokens} for tokens in (64, 256)]
    found["completions"][0] |= {"encodes": spans, "encode_s": 0.1}
    assert "  encode 100.0 ms by prefill-0, images of 64, 256 tokens" in list(explained(found))
    found["completions"][0] |= {"encode_worker": "encode-1", "row_transfers": spans}
    lines = list(explained(found))
    assert "  encode 100.0 ms by encode-1, images of 64, 256 tokens" in lines
    assert "  rows of 2 images came from there, the last 600.0 ms after the request" in lines


def test_explain_shows_that_a_request_did_not_finish() -> None:
    record = RequestRecord("a", "anybody", "abort", "", 2.0, 0, 3, 0)
    assert list(explained(record.as_json())) == [
        "a: abort after 2.00 s; 3 prompt tokens (0 cached), priority 0, client anybody"
    ]


async def test_the_admin_endpoint_finds_a_request_by_its_id() -> None:
    history = History(10)
    await run(make_generation(history), "a/b")
    app = admin_app({"small": ManagedModel(Mock(), Mock(), explain=history.find)})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        found, missing = await client.get("/requests/a%2Fb"), await client.get("/requests/none")
    assert found.json()["request"] == "a/b"
    assert missing.status_code == 404
    assert "--explain-requests" in missing.json()["error"]


def test_the_last_request_with_a_clients_own_id_is_found_and_named(caplog: pytest.LogCaptureFixture) -> None:
    history = History(10)
    with caplog.at_level(logging.INFO, "router.api.generation.history"):
        for own in ("cmpl-1", "cmpl-2"):
            history.add(RequestRecord(own, "anybody", "ok", "", 2.0, 0, 3, 0, clients_id="op-77"))
    found = history.find("op-77")
    assert found is not None
    assert (found["request"], found["client_request"]) == ("cmpl-2", "op-77")
    assert next(iter(explained(found))).startswith("cmpl-2 (op-77): ok")
    assert "request 'cmpl-1' (op-77): ok" in caplog.text
    assert history.find("") is None
