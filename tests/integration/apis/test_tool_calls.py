"""Tool calls and reasoning through every API, over a scripted model; by the openai package where it can."""

from __future__ import annotations

import json
from typing import Any

import grpc
import httpx
import openai
import pytest

from router.api.generation.output.formats import OutputFormats, ReasoningFormat, ToolFormat
from rpc.baton.v1 import router_pb2, router_pb2_grpc
from tests.integration.apis.tool_answers import ASK, BERN, CALL, SCHEMA, TOOL, answer_with, reason
from tests.integration.frontends import Frontends


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
    answer_with(frontends, CALL)
    answer = await client.chat.completions.create(
        model="small", messages=ASK, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    assert answer.choices[0].message.tool_calls
    grammar = frontends.dispatcher.calls[0].sampling.grammar.text
    assert f"%json {json.dumps(SCHEMA)}" in grammar
    assert ")*" not in grammar, "one call"


async def test_a_named_call_is_held_to_the_schema_of_its_arguments(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    answer_with(frontends, CALL)
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    answer = await client.chat.completions.create(
        model="small", messages=ASK, tools=[TOOL], tool_choice=choice
    )
    [call] = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert json.loads(call.function.arguments) == BERN
    assert f"%json {json.dumps(SCHEMA)}" in frontends.dispatcher.calls[0].sampling.grammar.text


async def test_a_forced_call_of_an_unknown_format_is_json(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    frontends.generation.formats = OutputFormats()  # type: ignore[misc]
    answer_with(frontends, json.dumps([{"name": "weather", "arguments": BERN}]))
    answer = await client.chat.completions.create(
        model="small", messages=ASK, tools=[TOOL], tool_choice="required"
    )
    assert answer.choices[0].message.tool_calls
    assert json.loads(frontends.dispatcher.calls[0].sampling.grammar.text)["type"] == "array"


async def test_a_forced_call_may_come_after_reasoning(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    frontends.generation.formats = OutputFormats(ToolFormat.HERMES, ReasoningFormat.THINK)  # type: ignore[misc]
    answer_with(frontends, f"<think>\nBern it is.\n</think>\n\n{CALL}")
    answer = await client.chat.completions.create(
        model="small", messages=ASK, tools=[TOOL], tool_choice="required"
    )
    message: Any = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Bern it is.", None)
    assert [call.function.name for call in message.tool_calls] == ["weather"]
    assert answer.usage
    assert answer.usage.completion_tokens_details
    assert answer.usage.completion_tokens_details.reasoning_tokens


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
