"""Agno: agents with text, a schema, and tools, plain and streamed, over chat completions and responses.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import os
import sys
from typing import Literal

from pydantic import BaseModel

os.environ["AGNO_TELEMETRY"] = "false"

from agno.agent import Agent
from agno.models.openai import OpenAILike, OpenResponses

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
COMMON = {"id": MODEL, "base_url": f"{URL}/v1", "api_key": "-", "max_retries": 0, "temperature": 0.0}


class City(BaseModel, extra="forbid"):
    """A city. Without "forbid", a small model may add properties until its context is full."""

    city: Literal["Bern", "Basel"]


def weather(city: str) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


for model, short in (
    (OpenAILike, {"max_tokens": 40}),
    (OpenResponses, {"max_output_tokens": 40}),
):
    text = Agent(model=model(**COMMON, **short), telemetry=False).run("Hello")
    assert text.content, (model, text)
    assert text.metrics.output_tokens > 0, (model, text)
    typed = Agent(model=model(**COMMON), output_schema=City, telemetry=False).run("Bern or Basel?")
    assert isinstance(typed.content, City), (model, typed)
    if not REAL:
        agent = Agent(model=model(**COMMON), tools=[weather], telemetry=False)
        called = agent.run("Weather in Bern?")
        assert called.content.endswith("Sunny."), (model, called)
        assert [tool.result for tool in called.tools] == ["Bern: sunny"], (model, called)
        events = [*agent.run("Weather in Bern?", stream=True)]
        assert "".join(e.content or "" for e in events if e.event == "RunContent").endswith("Sunny."), events
