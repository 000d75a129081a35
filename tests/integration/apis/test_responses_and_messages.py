"""OpenAI's Responses API and Anthropic's Messages API over a scripted model."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.integration.apis.tool_answers import ASK, BERN, SCHEMA, TOOL, answer_with, reason
from tests.integration.frontends import Frontends


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
