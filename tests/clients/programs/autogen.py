"""autogen-ext and autogen-agentchat: it names every user.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import asyncio
import sys
from typing import Literal

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True
)
ASK = [UserMessage(content="Bern or Basel?", source="user")]


class City(BaseModel, extra="forbid"):
    """A city. Without "forbid", a small model may add properties until its context is full."""

    city: Literal["Bern", "Basel"]


def weather(city: Literal["Bern", "Basel"]) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


async def main() -> None:
    client = OpenAIChatCompletionClient(
        model=MODEL, base_url=f"{URL}/v1", api_key="-", model_info=INFO, max_retries=0, max_tokens=40
    )
    answer = await client.create(ASK)
    assert answer.content, answer
    assert answer.usage.completion_tokens > 0, answer
    pieces = [piece async for piece in client.create_stream(ASK)]
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == pieces[-1].content, pieces
    city = await client.create(ASK, json_output=City)
    assert City.model_validate_json(city.content), city
    if not REAL:
        agent = AssistantAgent("helper", client, tools=[weather], reflect_on_tool_use=True)
        result = await agent.run(task="Weather in Bern?")
        assert result.messages[-1].content == "Sunny.", result


asyncio.run(main())
