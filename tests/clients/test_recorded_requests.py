"""The requests of coding agents, which cannot be installed everywhere: `recorded/` has one of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.modeling.loader.checkpoint import resolve
from tests.clients.real_model import MAX_MODEL_LEN
from tests.clients.scripted_model import weather_script
from tests.integration.frontends import open_frontends

FOLDER = Path(__file__).parent / "recorded"
RECORDED = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def events_of(answer: httpx.Response) -> list[Any]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


async def ask(name: str, *more: dict[str, Any]) -> list[Any]:
    """Send the recorded request, with `more` turns of the conversation; returns the events."""
    recorded = RECORDED[name]
    turns = "input" if "input" in recorded["body"] else "messages"
    body = recorded["body"] | {turns: [*recorded["body"][turns], *more]}
    async with (
        open_frontends(resolve("smollm2").path, max_model_len=MAX_MODEL_LEN) as frontends,
        httpx.AsyncClient(base_url=frontends.url) as http,
    ):
        frontends.dispatcher.script = weather_script(frontends.generation.tokenizer)
        answer = await http.post(recorded["path"], json=body, headers=recorded["headers"])
    assert answer.status_code == 200, answer.text
    return events_of(answer)


async def test_codex_calls_a_tool_and_gets_its_answer() -> None:
    last = (await ask("codex"))[-1]
    assert last["type"] == "response.completed"
    assert last["response"]["metadata"]["tools_left_out"] == "custom, namespace, web_search"
    [call] = last["response"]["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == (
        "function_call",
        "weather",
        {"city": "Bern"},
    )
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    last = (await ask("codex", call, result))[-1]
    assert last["response"]["output"][0]["content"][0]["text"] == "Sunny."


async def test_claude_code_calls_a_tool_and_gets_its_answer() -> None:
    events = await ask("claude_code")
    [start] = [event for event in events if event["type"] == "content_block_start"]
    pieces = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert start["content_block"]["name"] == "weather"
    assert json.loads("".join(pieces)) == {"city": "Bern"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    call = {"role": "assistant", "content": [start["content_block"] | {"input": {"city": "Bern"}}]}
    result = {"type": "tool_result", "tool_use_id": start["content_block"]["id"], "content": "sunny"}
    events = await ask("claude_code", call, {"role": "user", "content": [result]})
    text = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(text) == "Sunny."


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_holds_no_secret(name: str) -> None:
    assert not {"authorization", "x-api-key"} & RECORDED[name]["headers"].keys()
