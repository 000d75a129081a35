"""Requests, answers, events and errors of every route are as /openapi.json says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio

from router.api.apis import APIS
from router.api.decisions.api import DECISIONS
from router.api.embeddings.api import EMBEDDINGS
from router.api.endpoints.openapi import openapi_document
from router.api.tokens.api import TOKENS
from router.api.weights.routes import WEIGHTS
from rpc.baton.v1 import router_pb2
from tests.integration.apis.tool_answers import ASK, SCHEMA, TOOL, reason
from tests.integration.frontends import Frontends, open_frontends

SPAN = router_pb2.TimingSpan(begin_s=0.1, end_s=0.2, first_token=0, num_tokens=3, bytes=5)
TIMINGS = router_pb2.Timings(
    queue_s=0.1,
    chunks=[SPAN],
    pushes=[SPAN],
    prefill_worker="prefill-0",
    decode_worker="decode-0",
    moves=[router_pb2.TimingMove(at_s=0.1, worker="decode-1", reason="drain")],
    preemptions=[router_pb2.TimingPreemption(at_s=0.1, waited_s=0.2, worker="decode-0", reason="pages")],
    pauses=[router_pb2.TimingPause(at_s=0.3, seconds=0.1, worker="decode-0", cause="gc", parts={"gc": 0.1})],
    waited={"pages": 0.1},
)
USAGE = {"include_usage": True, "continuous_usage_stats": True}
FUNCTION = {"type": "function", "name": "weather", "parameters": SCHEMA}
MESSAGES = {"model": "small", "max_tokens": 200, "messages": ASK}
STREAMING: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"prompt": "hi"},
        {"prompt": ["hi", "ho"], "n": 2, "max_tokens": 3},
        {"prompt": "hi", "logprobs": 2, "max_tokens": 3, "timings": True},
        {"prompt": "hi", "echo": True, "stop": " and"},
        {"prompt": "hi there", "echo": True, "logprobs": 1, "max_tokens": 2},
        {"prompt": ["hi", "ho"], "return_token_ids": True, "stop": " and"},
    ],
    "/v1/chat/completions": [
        {"messages": ASK},
        {"messages": ASK, "n": 2, "max_tokens": 3},
        {"messages": ASK, "logprobs": True, "top_logprobs": 2, "max_tokens": 3, "timings": True},
        {"messages": ASK, "tools": [TOOL], "timings": True, "return_token_ids": True},
    ],
    "/v1/responses": [
        {"input": "hi"},
        {"input": "hi", "top_logprobs": 2, "max_output_tokens": 3},
        {"input": "hi", "tools": [FUNCTION, {"type": "web_search"}], "reasoning": {"effort": "low"}},
    ],
    "/v1/messages": [
        MESSAGES,
        MESSAGES | {"max_tokens": 3},
        MESSAGES | {"tools": [{"name": "weather", "input_schema": SCHEMA}], "stop_sequences": [" and"]},
    ],
}
OTHERS: dict[str, dict[str, Any]] = {
    "/v1/messages/count_tokens": {"model": "small", "messages": ASK},
    "/v1/completions/render": {"prompt": [[5], [1, 2]]},
    "/v1/chat/completions/render": {"messages": ASK},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1, 2]},
}
WITHOUT_BODY = ("/v1/sessions/{key}/release",)
GETS = ("/v1/models", "/v1/models/{name}", "/live", "/ready", "/health", "/ping", "/version")


@pytest_asyncio.fixture
async def frontends(folder: Path) -> AsyncIterator[Frontends]:
    async with open_frontends(folder, max_model_len=2048) as opened:
        reason(opened)  # reasoning, text and a call, if tools are offered
        opened.dispatcher.timings = TIMINGS
        yield opened


@pytest_asyncio.fixture
async def document(http: httpx.AsyncClient) -> Any:
    return (await http.get("/openapi.json")).json()


def check(document: Any, schema: Mapping[str, Any], value: Any) -> None:
    jsonschema.validate(value, {**schema, "components": document["components"]})


def responses(document: Any, path: str, method: str = "post") -> Any:
    return document["paths"][path][method]["responses"]


@pytest.mark.parametrize(("path", "body"), [(path, body) for path in STREAMING for body in STREAMING[path]])
async def test_requests_answers_and_events_are_as_documented(
    http: httpx.AsyncClient, document: Any, path: str, body: dict[str, Any]
) -> None:
    [asked] = document["paths"][path]["post"]["requestBody"]["content"].values()
    check(document, asked["schema"], body)
    content = responses(document, path)["200"]["content"]
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    check(document, content["application/json"]["schema"], answer.json())
    for more in ({}, {"stream_options": USAGE}) if path.endswith("completions") else ({},):
        streamed = await http.post(path, json=body | {"stream": True} | more)
        events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
        assert len(events) >= 3
        for event in events:
            if event != "[DONE]":
                check(document, content["text/event-stream"]["x-event-schema"], json.loads(event))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["hi there", "ho"], "prompt_logprobs": 2, "max_tokens": 0}),
        ("/v1/completions", {"prompt": "hi there", "echo": True, "logprobs": 1, "max_tokens": 0}),
        ("/v1/chat/completions", {"messages": ASK, "prompt_logprobs": 1, "max_tokens": 3}),
    ],
)
async def test_scored_prompts_are_as_documented(
    http: httpx.AsyncClient, document: Any, path: str, body: dict[str, Any]
) -> None:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    check(document, responses(document, path)["200"]["content"]["application/json"]["schema"], answer.json())


@pytest.mark.parametrize("path", OTHERS)
async def test_other_answers_are_as_documented(http: httpx.AsyncClient, document: Any, path: str) -> None:
    answer = await http.post(path, json=OTHERS[path])
    check(document, responses(document, path)["200"]["content"]["application/json"]["schema"], answer.json())


@pytest.mark.parametrize("path", WITHOUT_BODY)
async def test_answers_to_posts_without_a_body_are_as_documented(
    http: httpx.AsyncClient, document: Any, path: str
) -> None:
    answer = await http.post(path.format(key="chat-7"))
    assert answer.status_code == 200
    check(document, responses(document, path)["200"]["content"]["application/json"]["schema"], answer.json())


@pytest.mark.parametrize("path", GETS)
async def test_what_is_read_is_as_documented(http: httpx.AsyncClient, document: Any, path: str) -> None:
    answer = await http.get(path.format(name="small"))
    assert answer.status_code == 200
    schema = responses(document, path, "get")["200"]["content"]["application/json"]["schema"]
    check(document, schema, answer.json())


@pytest.mark.parametrize("path", [*STREAMING, *OTHERS])
async def test_errors_are_as_documented(http: httpx.AsyncClient, document: Any, path: str) -> None:
    body = STREAMING[path][0] if path in STREAMING else OTHERS[path]
    for wrong, status in ((body | {"model": "none such"}, "404"), (body | {"nonsense": 1}, "400")):
        answer = await http.post(path, json=wrong)
        assert str(answer.status_code) == status
        documented = responses(document, path)[status]["content"]["application/json"]["schema"]
        check(document, documented, answer.json())


def test_every_route_of_the_document_is_tested(frontends: Frontends) -> None:
    generation = frontends.generation
    assert set(openapi_document(APIS, "small", generation.bounds)["paths"]) == {
        *STREAMING,
        *OTHERS,
        *WITHOUT_BODY,
        *GETS,
        *(endpoint.path for endpoint in WEIGHTS.endpoints),  # by test_weight_updates.py
        *(endpoint.path for endpoint in DECISIONS.endpoints),  # by test_decisions.py
        *(endpoint.path for endpoint in EMBEDDINGS.endpoints),  # by test_embeddings.py
        *(endpoint.path for endpoint in TOKENS.endpoints),  # by test_tokens.py
    }
