"""Tool calls and reasoning through every API, over a scripted model; by the openai package where it can."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
import pytest_asyncio

from engine.loader.checkpoint import resolve
from router.processing.output.formats import OutputFormats, ReasoningFormat, ToolFormat
from router.request_limits import RequestLimits
from rpc.baton.v1 import router_pb2, router_pb2_grpc, sampling_pb2
from rpc.router_client import RouterClient
from tests.integration.frontends import Call, Frontends, open_frontends, say

EOS = 2
BERN = {"city": "Bern", "days": [1, 2]}
CALL = f"<tool_call>\n{json.dumps({'name': 'weather', 'arguments': BERN})}\n</tool_call>"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Forecast.", "parameters": SCHEMA},
}
ASK: list[Any] = [{"role": "user", "content": "Weather in Bern?"}]


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("smollm2").path


@pytest_asyncio.fixture
async def frontends(folder: Path) -> AsyncIterator[Frontends]:
    async with open_frontends(folder, max_model_len=2048) as opened:
        yield opened


@pytest_asyncio.fixture
async def client(frontends: Frontends) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{frontends.url}/v1", api_key="-", max_retries=0) as client:
        yield client


@pytest_asyncio.fixture
async def http(frontends: Frontends) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=frontends.url, timeout=10) as client:
        yield client


def answer_with(frontends: Frontends, text: str) -> None:
    frontends.dispatcher.script = say(frontends.generation.tokenizer, text, eos=EOS)


def reason(frontends: Frontends) -> None:
    frontends.generation.formats = OutputFormats(ToolFormat.HERMES, ReasoningFormat.THINK)  # type: ignore[misc]
    answer_with(frontends, f"<think>\nBern it is.\n</think>\n\nWait.\n{CALL}")


async def test_a_chat_answer_has_its_calls_beside_its_text(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    answer_with(frontends, f"Wait.\n{CALL}\n{CALL}")
    answer = await client.chat.completions.create(model="small", messages=ASK, tools=[TOOL])
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Wait.")
    assert choice.message.tool_calls
    first, second = choice.message.tool_calls
    assert first.type == "function"
    assert (first.function.name, json.loads(first.function.arguments)) == ("weather", BERN)
    assert first.id != second.id
    prompt = frontends.generation.tokenizer.decode(frontends.dispatcher.calls[0].prompt)
    assert '"description": "Forecast."' in prompt


async def test_a_stream_brings_the_name_first_and_arguments_as_they_are_written(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    answer_with(frontends, CALL)
    deltas, reasons = [], []
    async for event in await client.chat.completions.create(
        model="small", messages=ASK, tools=[TOOL], stream=True
    ):
        deltas += event.choices[0].delta.tool_calls or []
        reasons.append(event.choices[0].finish_reason)
    assert deltas[0].function
    assert (deltas[0].id is not None, deltas[0].function.name) == (True, "weather")
    pieces = [delta.function.arguments or "" for delta in deltas if delta.function]
    assert len(pieces) > 3
    assert json.loads("".join(pieces)) == BERN
    assert reasons[-1] == "tool_calls"


async def test_calls_and_results_of_earlier_answers_reach_the_model(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    answer_with(frontends, "Sunny.")
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
    }
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "no cloud"},
    ]
    answer = await client.chat.completions.create(model="small", messages=messages, tools=[TOOL])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Sunny.", "stop")
    prompt = frontends.generation.tokenizer.decode(frontends.dispatcher.calls[0].prompt)
    assert '{"name": "weather", "arguments": {"city": "Bern"}}' in prompt
    assert "<tool_response>\nno cloud\n</tool_response>" in prompt


async def test_parallel_tool_calls_false_keeps_the_first_call_only(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    answer_with(frontends, f"{CALL}\n{CALL}")
    answer = await client.chat.completions.create(
        model="small", messages=ASK, tools=[TOOL], parallel_tool_calls=False
    )
    assert len(answer.choices[0].message.tool_calls or ()) == 1


async def test_tool_choice_none_offers_no_tools(frontends: Frontends, client: openai.AsyncOpenAI) -> None:
    answer_with(frontends, CALL)
    answer = await client.chat.completions.create(
        model="small", messages=ASK, tools=[TOOL], tool_choice="none"
    )
    assert answer.choices[0].message.content == CALL
    assert "Forecast." not in frontends.generation.tokenizer.decode(frontends.dispatcher.calls[0].prompt)


async def test_a_required_call_is_held_to_the_tools_by_a_grammar(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    answer_with(frontends, json.dumps([{"name": "weather", "arguments": BERN}]))
    answer = await client.chat.completions.create(
        model="small", messages=ASK, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    assert answer.choices[0].message.tool_calls
    schema = json.loads(frontends.dispatcher.calls[0].sampling.grammar.text)
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    assert schema["items"]["anyOf"][0]["properties"]["arguments"] == SCHEMA


async def test_a_named_call_is_held_to_the_schema_of_its_arguments(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    answer_with(frontends, json.dumps(BERN))
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    answer = await client.chat.completions.create(
        model="small", messages=ASK, tools=[TOOL], tool_choice=choice
    )
    [call] = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert json.loads(call.function.arguments) == BERN
    assert json.loads(frontends.dispatcher.calls[0].sampling.grammar.text) == SCHEMA


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    ],
)
async def test_every_api_takes_a_schema_of_the_answer(
    frontends: Frontends, http: httpx.AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    messages = {"model": "small", "max_tokens": 50, "messages": ASK}
    body = {"input": "hi"} if path == "/v1/responses" else messages
    assert (await http.post(path, json=body | fields)).status_code == 200
    assert json.loads(frontends.dispatcher.calls[0].sampling.grammar.text) == SCHEMA


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL | {"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "always", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": [TOOL]}, "tool_choice"),
    ],
)
async def test_tools_that_make_no_sense_are_refused_by_place(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    response = await http.post("/v1/chat/completions", json={"messages": ASK} | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_reasoning_is_not_part_of_a_chat_answers_content(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    reason(frontends)
    answer = await client.chat.completions.create(model="small", messages=ASK, tools=[TOOL])
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ("Wait.", "Bern it is.")  # type: ignore[attr-defined]
    assert len(message.tool_calls or ()) == 1


async def test_a_response_has_an_item_for_each_kind_of_output(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    reason(frontends)
    tool: Any = {"type": "function", "strict": None} | TOOL["function"]
    response = await client.responses.create(model="small", input="Weather?", tools=[tool], store=False)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.output_text == "Wait."
    call = response.output[2]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("weather", BERN)
    assert response.usage
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens

    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    answer_with(frontends, "Sunny.")
    history: Any = [{"role": "user", "content": "Weather?"}, *response.output, result]
    again = await client.responses.create(model="small", input=history)
    assert again.output_text == "Sunny."
    prompt = frontends.generation.tokenizer.decode(frontends.dispatcher.calls[-1].prompt)
    assert prompt.index("Wait.") < prompt.index('"name": "weather"') < prompt.index("sunny")


async def test_a_streamed_response_ends_with_what_its_events_said(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    reason(frontends)
    tool: Any = {"type": "function", "strict": None} | TOOL["function"]
    async with client.responses.stream(model="small", input="Weather?", tools=[tool]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == sorted(event.sequence_number for event in events)
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == final.output_text == "Wait."
    kinds = [event.type for event in events]
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3
    assert "response.reasoning_text.delta" in kinds


async def test_a_response_is_incomplete_when_its_tokens_run_out(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    response = await client.responses.create(model="small", input="hi", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("field", "value"),
    [("store", True), ("previous_response_id", "resp_1"), ("background", True), ("truncation", "auto")],
)
async def test_a_response_that_would_need_state_is_refused_with_the_reason(
    http: httpx.AsyncClient, field: str, value: Any
) -> None:
    response = await http.post("/v1/responses", json={"input": "hi", field: value})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, field, "unsupported_parameter")


async def test_anthropics_message_has_blocks_of_every_kind(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    reason(frontends)
    body = {
        "model": "small",
        "max_tokens": 200,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": ASK,
        "tools": [{"name": "weather", "input_schema": SCHEMA}],
    }
    message = (await http.post("/v1/messages", json=body, headers={"x-api-key": "-"})).json()
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert (message["content"][2]["input"], message["stop_reason"]) == (BERN, "tool_use")
    counted = await http.post(
        "/v1/messages/count_tokens", json={k: body[k] for k in body if k != "max_tokens"}
    )
    usage = message["usage"]
    assert counted.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]

    answer_with(frontends, "Sunny.")
    call_id = message["content"][2]["id"]
    result = {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": "sunny"}]}
    body["messages"] = [
        *ASK,
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [result]},
    ]
    again = (await http.post("/v1/messages", json=body)).json()
    assert again["content"] == [{"type": "text", "text": "Sunny."}]
    assert again["stop_reason"] == "end_turn"


async def test_anthropics_stream_tells_the_same_as_the_whole_message(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    reason(frontends)
    body = {
        "model": "small",
        "max_tokens": 200,
        "messages": ASK,
        "tools": [{"name": "weather", "input_schema": SCHEMA}],
        "stream": True,
    }
    response = await http.post("/v1/messages", json=body)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    pieces = [
        event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"
    ]
    assert json.loads("".join(pieces)) == BERN
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_anthropics_errors_and_stop_sequences_are_its_own(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    body = {"model": "small", "max_tokens": 50, "messages": ASK}
    wrong = await http.post("/v1/messages", json=body | {"model": "other"})
    assert wrong.status_code == 404
    assert wrong.json()["type"] == "error"
    assert wrong.json()["error"]["type"] == "not_found_error"
    reached = (await http.post("/v1/messages", json=body | {"max_tokens": 3})).json()
    assert reached["stop_reason"] == "max_tokens"
    stopped = (await http.post("/v1/messages", json=body | {"stop_sequences": [" and"]})).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " and")


async def test_tokens_of_a_text_become_the_text_again(http: httpx.AsyncClient) -> None:
    tokens = (await http.post("/tokenize", json={"prompt": "hello world"})).json()
    assert tokens["count"] == len(tokens["tokens"])
    text = await http.post("/detokenize", json={"tokens": tokens["tokens"]})
    assert text.json() == {"prompt": "hello world"}
    chat = (await http.post("/tokenize", json={"messages": ASK})).json()
    assert chat["count"] > 5


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank"])
async def test_what_needs_another_kind_of_model_is_refused_clearly(
    http: httpx.AsyncClient, path: str
) -> None:
    response = await http.post(path, json={"input": "hi"})
    assert (response.status_code, response.json()["error"]["code"]) == (501, "not_implemented")


async def test_logit_biases_reach_the_worker(frontends: Frontends, client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(model="small", messages=ASK, logit_bias={"5": -100, "7": 2})
    assert frontends.dispatcher.calls[0].sampling.logit_bias == {5: -100.0, 7: 2.0}


async def test_grpc_has_tools_reasoning_and_details_of_errors(frontends: Frontends) -> None:
    reason(frontends)
    chat = router_pb2.Chat(
        messages=[router_pb2.ChatMessage(role="user", content="Weather?")],
        tools=[router_pb2.Tool(name="weather", parameters=json.dumps(SCHEMA))],
    )
    async with grpc.aio.insecure_channel(frontends.target) as channel:
        stub = router_pb2_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        parts = [part async for r in stub.Generate(router_pb2.GenerateRequest(chat=chat)) for part in r.parts]
        assert "".join(part.reasoning for part in parts) == "Bern it is."
        assert "".join(part.content for part in parts) == "Wait."
        assert [part.call.name for part in parts if part.HasField("call")] == ["weather"]
        assert json.loads("".join(part.arguments for part in parts)) == BERN
        ids = (await stub.Tokenize(router_pb2.TokenizeRequest(text="hello"))).ids
        assert (await stub.Detokenize(router_pb2.DetokenizeRequest(ids=ids))).text == "hello"


async def test_every_api_says_how_many_tokens_were_reasoning(
    frontends: Frontends, client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    reason(frontends)
    script = frontends.dispatcher.script(Call([], sampling_pb2.SamplingParams(max_tokens=200), 0, 0.0))
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
        assert (call.priority, call.ttft_deadline_s, call.timeout_s) == (-7, 1.5, 30.0)
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
        assert opened.dispatcher.calls[0].priority == 3
