"""Fields and routes that every API has: token ids, biases, usage of reasoning, priorities and deadlines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from router.request_limits import RequestLimits
from rpc.baton.v1 import router_pb2, sampling_pb2, worker_pb2
from rpc.router_client import RouterClient
from tests.integration.apis.tool_answers import ASK, reason
from tests.integration.frontends import Call, Frontends, open_frontends


async def test_tokens_of_a_text_become_the_text_again(http: httpx.AsyncClient) -> None:
    tokens = (await http.post("/tokenize", json={"prompt": "hello world"})).json()
    assert tokens["count"] == len(tokens["tokens"])
    text = await http.post("/detokenize", json={"tokens": tokens["tokens"]})
    assert text.json() == {"prompt": "hello world"}
    chat = (await http.post("/tokenize", json={"messages": ASK})).json()
    assert chat["count"] > 5


async def test_rendered_prompts_are_the_tokens_that_reach_the_workers(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    chat = {"messages": ASK, "max_tokens": 3}
    rendered = (await http.post("/v1/chat/completions/render", json=chat)).json()
    texts = {"prompt": ["hello world", "hi"], "max_tokens": 3}
    several = (await http.post("/v1/completions/render", json=texts)).json()
    assert not frontends.dispatcher.calls, "nothing is computed"
    await http.post("/v1/chat/completions", json=chat)
    await http.post("/v1/completions", json={"prompt": [each["token_ids"] for each in several]})
    prompts = [list(call.prompt) for call in frontends.dispatcher.calls]
    assert prompts == [rendered["token_ids"], *(each["token_ids"] for each in several)]


@pytest.mark.parametrize("ask", [{"prompt": [5, 6, 7]}, {"messages": ASK}])
async def test_token_ids_of_prompt_and_answer_are_returned_whole_and_streamed(
    frontends: Frontends, http: httpx.AsyncClient, ask: dict[str, Any]
) -> None:
    path = "/v1/completions" if "prompt" in ask else "/v1/chat/completions"
    body = ask | {"return_token_ids": True, "max_tokens": 4}
    answer = (await http.post(path, json=body)).json()
    (choice,) = answer["choices"]
    whole = choice["token_ids"], (choice if "prompt" in ask else answer)["prompt_token_ids"]
    assert whole == (whole[0], list(frontends.dispatcher.calls[0].prompt))
    assert len(whole[0]) == answer["usage"]["completion_tokens"] > 0

    streamed = (await http.post(path, json=body | {"stream": True})).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    holders = choices if "prompt" in ask else events
    prompts = [holder["prompt_token_ids"] for holder in holders if "prompt_token_ids" in holder]
    assert prompts == [whole[1]]
    assert [token for choice in choices for token in choice.get("token_ids", [])] == whole[0]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/embeddings", {"input": "hi"}), ("/v1/rerank", {"query": "hi", "documents": ["ho"]})],
)
async def test_what_needs_another_kind_of_model_is_refused_clearly(
    http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    response = await http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "wrong_model")


async def test_logit_biases_reach_the_worker(frontends: Frontends, client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(model="small", messages=ASK, logit_bias={"5": -100, "7": 2})
    assert frontends.dispatcher.calls[0].sampling.logit_bias == {5: -100.0, 7: 2.0}


async def test_every_api_reports_the_number_of_reasoning_tokens(
    frontends: Frontends, client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    reason(frontends)
    script = frontends.dispatcher.script(
        Call(worker_pb2.Work(prompt=[], sampling=sampling_pb2.SamplingParams(max_tokens=200)))
    )
    tokens = [token for delta in script for token in delta.token_ids]
    decode = frontends.generation.tokenizer.decode
    expected = next(n for n in range(len(tokens)) if "</think>" in decode(tokens[:n]))

    chat = await client.chat.completions.create(model="small", messages=ASK)
    assert chat.usage
    assert chat.usage.completion_tokens_details
    assert chat.usage.completion_tokens_details.reasoning_tokens == expected
    assert chat.usage.completion_tokens > expected
    stream = await client.chat.completions.create(
        model="small", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    assert [event.usage async for event in stream][-1] == chat.usage

    response = await client.responses.create(model="small", input="Weather?")
    assert response.usage
    assert response.usage.output_tokens_details.reasoning_tokens == expected
    async with client.responses.stream(model="small", input="Weather?") as events:
        final = await events.get_final_response()
    assert final.usage == response.usage

    body = {"model": "small", "max_tokens": 200, "messages": ASK}
    message = (await http.post("/v1/messages", json=body)).json()
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": expected}
    lines = (await http.post("/v1/messages", json=body | {"stream": True})).text.splitlines()
    told = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    [delta] = [event for event in told if event["type"] == "message_delta"]
    assert delta["usage"]["output_tokens_details"] == {"thinking_tokens": expected}

    request = [router_pb2.ChatMessage(role="user", content="Weather?")]
    async with RouterClient(frontends.target) as grpc_client:
        assert (await grpc_client.answer(request)).usage.reasoning_tokens == expected


async def test_answers_without_reasoning_have_no_reasoning_tokens(client: openai.AsyncOpenAI) -> None:
    completion = await client.completions.create(model="small", prompt="hi")
    assert completion.usage
    assert completion.usage.completion_tokens_details
    assert completion.usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_every_api_takes_a_priority_and_deadlines(folder: Path, path: str) -> None:
    body: dict[str, Any] = {"model": "small", "messages": ASK, "max_tokens": 50}
    if path == "/v1/responses":
        body = {"model": "small", "input": "hi"}
    async with (
        open_frontends(folder, limits=RequestLimits(priorities=True, ttft_deadlines=True)) as opened,
        httpx.AsyncClient(base_url=opened.url, timeout=10) as http,
    ):
        wishes = {"priority": -7, "ttft_deadline": 1.5, "timeout": 30}
        assert (await http.post(path, json=body | wishes)).status_code == 200
        [call] = opened.dispatcher.calls
        asked = call.request
        assert (asked.priority, asked.ttft_deadline_s, asked.timeout_s) == (-7, 1.5, 30.0)
        refused = await http.post(path, json=body | {"priority": 1 << 40})
        assert refused.status_code == 400


@pytest.mark.parametrize("field", ["priority", "ttft_deadline"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"model": "small", "messages": ASK, "max_tokens": 5}),
    ],
)
async def test_every_api_refuses_what_the_scheduler_does_not_go_by(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], field: str
) -> None:
    response = await http.post(path, json=body | {field: 1})
    assert response.status_code == 400
    assert field in response.json()["error"]["message"]


async def test_openais_client_sets_a_priority_of_a_response_by_extra_body(folder: Path) -> None:
    async with (
        open_frontends(folder, limits=RequestLimits(priorities=True)) as opened,
        openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="-", max_retries=0) as client,
    ):
        await client.responses.create(model="small", input="hi", extra_body={"priority": 3})
        assert opened.dispatcher.calls[0].request.priority == 3
