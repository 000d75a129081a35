"""langchain-openai: with_structured_output and bind_tools.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]


class City(BaseModel, extra="forbid"):
    """A city. Without "forbid", or "strict", a small model may add properties until its context is full."""

    city: Literal["Bern", "Basel"]


@tool
def weather(city: Literal["Bern", "Basel"]) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


for responses_api in (False, True):
    model = ChatOpenAI(
        base_url=f"{URL}/v1", api_key="-", model=MODEL, max_retries=0, use_responses_api=responses_api
    )
    for method in ("json_schema", "function_calling"):
        city = model.with_structured_output(City, method=method).invoke("Bern or Basel?")
        assert city.city in ("Bern", "Basel"), (method, city)
    for choice in ("any", "weather"):
        message = model.bind_tools([weather], tool_choice=choice, strict=True).invoke("Weather in Bern?")
        assert message.tool_calls[0]["args"]["city"] in ("Bern", "Basel"), message
    chunks = list(model.bind_tools([weather], tool_choice="any", strict=True).stream("Weather in Bern?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.tool_calls[0]["name"] == "weather", whole
    if not REAL:
        agent = model.bind_tools([weather])
        history = [HumanMessage("Weather in Bern?")]
        history.append(agent.invoke(history))
        call = history[-1].tool_calls[0]
        history.append(ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]))
        answer = agent.invoke(history)
        assert answer.text == "Sunny.", answer
