"""mirascope: calls, streams, tools and typed answers, over both of OpenAI's APIs.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import sys
from typing import Literal

from mirascope import llm
from pydantic import BaseModel

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
ASK = "Weather in Bern?"
llm.register_provider("openai", scope="openai/", base_url=f"{URL}/v1", api_key="-")


class City(BaseModel, extra="forbid"):
    """A city. Without "forbid", a small model may add properties until its context is full."""

    city: Literal["Bern", "Basel"]


@llm.tool
def weather(city: Literal["Bern", "Basel"]) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


for api in ("completions", "responses"):
    model = llm.Model(f"openai/{MODEL}:{api}", max_tokens=40)
    answer = model.call(ASK)
    assert answer.text(), answer
    assert answer.usage.output_tokens > 0, answer
    stream = model.stream(ASK)
    streamed = "".join(stream.text_stream())
    assert streamed.strip(), stream
    assert streamed == stream.text() + "\n", (streamed, stream)
    forced = model.call(ASK, format=llm.format(City, mode="tool"))
    assert forced.parse().city in ("Bern", "Basel"), forced
    if not REAL:
        called = model.call(ASK, tools=[weather])
        [result] = called.execute_tools()
        assert result.result == "Bern: sunny", result
        assert called.resume([result]).text() == "Sunny.", called
