"""pydantic-ai: text, typed answers as schema and as calls, streams with tools, over both of OpenAI's APIs.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import asyncio
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
PROVIDER = OpenAIProvider(base_url=f"{URL}/v1", api_key="-")


class City(BaseModel, extra="forbid"):
    """A city. Without "forbid", a small model may add properties until its context is full."""

    city: Literal["Bern", "Basel"]


async def main() -> None:
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind(MODEL, provider=PROVIDER)
        text = await Agent(model, model_settings={"max_tokens": 40, "temperature": 0.0}).run("Hello")
        assert text.output, text
        assert text.usage.output_tokens > 0, text
        native = await Agent(model, output_type=NativeOutput(City)).run("Bern or Basel?")
        assert native.output.city in ("Bern", "Basel"), native
        if REAL:
            called = await Agent(model, output_type=ToolOutput(City, name="weather")).run("Bern or Basel?")
            assert called.output.city in ("Bern", "Basel"), called
        else:
            agent = Agent(model, tools=[weather])
            async with agent.run_stream("Weather in Bern?") as stream:
                assert await stream.get_output() == "Sunny."


def weather(city: Literal["Bern", "Basel"]) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


asyncio.run(main())
