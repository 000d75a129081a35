"""Forced tool calls of SmolLM2: a grammar holds it to the schemas of the tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine.loop.engine import Engine
from engine.modeling.loader.checkpoint import resolve
from tests.clients.real_model import MAX_MODEL_LEN, engine_script, small_engine
from tests.integration.frontends import open_frontends

ASK: list[Any] = [{"role": "user", "content": "What is the weather in Bern?"}]


def tool(name: str, **properties: Any) -> Any:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("weather", city={"enum": ["Bern", "Basel"]}, days={"type": "integer", "minimum": 1, "maximum": 7}),
    tool("time", zone={"enum": ["CET", "UTC"]}),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = small_engine()
    yield engine
    engine.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_forced_call_follows_the_schema_of_its_tool(engine: Engine, stream: bool) -> None:
    named: Any = {"type": "function", "function": {"name": "time"}}
    async with open_frontends(resolve("smollm2").path, max_model_len=MAX_MODEL_LEN) as frontends:
        frontends.dispatcher.script = engine_script(engine)
        async with openai.AsyncOpenAI(base_url=f"{frontends.url}/v1", api_key="-", max_retries=0) as client:
            for choice in ("required", named):
                fields: Any = {"model": "small", "messages": ASK, "tools": TOOLS, "tool_choice": choice}
                fields |= {"parallel_tool_calls": False, "seed": 5}
                if stream:
                    async with client.chat.completions.stream(**fields) as events:
                        async for _ in events:
                            pass
                        answer: Any = await events.get_final_completion()
                else:
                    answer = await client.chat.completions.create(**fields)
                [call] = answer.choices[0].message.tool_calls
                arguments = json.loads(call.function.arguments)
                if call.function.name == "weather":
                    assert arguments["city"] in ("Bern", "Basel")
                    assert 1 <= arguments["days"] <= 7
                else:
                    assert arguments["zone"] in ("CET", "UTC")
                assert answer.choices[0].finish_reason == "tool_calls"
                if choice is named:
                    assert call.function.name == "time"
