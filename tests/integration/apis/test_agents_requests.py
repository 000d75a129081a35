"""What coding agents and SDKs send to the APIs of responses and messages beyond their references' core."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.integration.apis.tool_answers import ASK, BERN, CALL, SCHEMA, answer_with
from tests.integration.frontends import Frontends, say

WEATHER = {"type": "function", "name": "weather", "parameters": SCHEMA}
OTHERS = [
    {"type": "web_search", "external_web_access": True},
    {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [WEATHER]},
    {
        "type": "custom",
        "name": "apply_patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
    },
]
FORMAT = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
PREFILL = {"role": "assistant", "content": "The forecast is "}


def prompt(frontends: Frontends, index: int = -1) -> str:
    backend = frontends.generation.tokenizer._backend
    return backend.decode(frontends.dispatcher.calls[index].prompt, skip_special_tokens=False)


async def respond(http: httpx.AsyncClient, **fields: Any) -> Any:
    answer = await http.post("/v1/responses", json={"input": "hi"} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def message(http: httpx.AsyncClient, **fields: Any) -> Any:
    body = {"model": "small", "max_tokens": 50, "messages": ASK} | fields
    answer = await http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_tools_that_are_no_functions_are_left_out_with_a_note(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    await respond(http, tools=[WEATHER])
    answer = await respond(http, tools=[*OTHERS, WEATHER], metadata={"job": "7"})
    assert answer["metadata"] == {"job": "7", "tools_left_out": "custom, namespace, web_search"}
    assert [tool["name"] for tool in answer["tools"]] == ["weather"]
    assert prompt(frontends, 0) == prompt(frontends, 1)


@pytest.mark.parametrize("choice", [{"type": "web_search"}, {"type": "custom", "name": "x"}, "required"])
async def test_a_tool_that_is_left_out_cannot_be_chosen(
    frontends: Frontends, http: httpx.AsyncClient, choice: Any
) -> None:
    answer = await http.post("/v1/responses", json={"input": "hi", "tools": OTHERS, "tool_choice": choice})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("tool_choice")
    assert not frontends.dispatcher.calls


async def test_hints_of_agents_change_nothing_in_a_template_without_them(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    await respond(http)
    answer = await respond(
        http,
        reasoning={"effort": "high", "summary": "auto"},
        client_metadata={"session": "1"},
        text={"verbosity": "low"},
    )
    assert answer["reasoning"] == {"effort": "high", "summary": None}
    await message(http)
    await message(
        http,
        output_config={"effort": "max"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        thinking={"type": "adaptive"},
    )
    assert prompt(frontends, 0) == prompt(frontends, 1)
    assert prompt(frontends, 2) == prompt(frontends, 3)


async def test_a_forced_call_wins_over_the_format_of_the_answer(
    frontends: Frontends, http: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    answer_with(frontends, CALL)
    tool = {"name": "weather", "input_schema": SCHEMA}
    answer = await respond(
        http, text={"format": FORMAT}, tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}
    )
    assert json.loads(answer["output"][0]["arguments"]) == BERN
    called = await message(
        http,
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
        tools=[tool],
        tool_choice={"type": "tool", "name": "weather"},
    )
    assert called["content"][0]["input"] == BERN
    for call in frontends.dispatcher.calls:
        assert f"%json {json.dumps(SCHEMA)}" in call.sampling.grammar.text


@pytest.mark.parametrize("content", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
async def test_the_system_may_speak_within_a_conversation(
    frontends: Frontends, http: httpx.AsyncClient, content: Any
) -> None:
    await message(http, messages=[*ASK, {"role": "system", "content": content}])
    assert prompt(frontends).endswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>assistant\n")
    result = {"type": "tool_result", "tool_use_id": "x", "content": "y"}
    wrong = {"model": "small", "max_tokens": 5, "messages": [*ASK, {"role": "system", "content": [result]}]}
    assert (await http.post("/v1/messages", json=wrong)).status_code == 400


async def test_a_last_message_of_the_assistant_is_continued(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    frontends.dispatcher.script = say(frontends.generation.tokenizer, "sunny.", eos=2)
    answer = await message(http, messages=[*ASK, PREFILL])
    assert prompt(frontends).endswith("<|im_start|>assistant\nThe forecast is ")
    assert answer["content"] == [{"type": "text", "text": "sunny."}]
    body = {"model": "small", "messages": [*ASK, PREFILL]}
    counted = (await http.post("/v1/messages/count_tokens", json=body)).json()
    assert counted["input_tokens"] == len(frontends.dispatcher.calls[0].prompt)
    forced = body | {
        "max_tokens": 5,
        "tools": [{"name": "weather", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
    }
    assert (await http.post("/v1/messages", json=forced)).status_code == 400


async def test_max_tokens_beyond_the_context_are_cut_for_messages_only(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    await message(http, max_tokens=32_000)
    call = frontends.dispatcher.calls[0]
    assert call.sampling.max_tokens == 2048 - len(call.prompt)
    refused = await http.post("/v1/responses", json={"input": "hi", "max_output_tokens": 32_000})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "the prompt has" in error["message"]
