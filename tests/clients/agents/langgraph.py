"""langgraph and langchain-openai: a ReAct agent, over both of OpenAI's APIs.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import sys
from typing import Literal

from langchain_core.messages import AIMessageChunk, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
ASK = {"messages": [("user", "Weather in Bern?")]}


@tool
def weather(city: Literal["Bern", "Basel"]) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


def check(model: ChatOpenAI) -> None:
    plain = create_react_agent(model, [])
    answer = plain.invoke(ASK)["messages"][-1]
    assert answer.text, answer
    assert answer.usage_metadata["output_tokens"] > 0, answer
    chunks = [chunk for chunk, _ in plain.stream(ASK, stream_mode="messages")]
    assert all(isinstance(chunk, AIMessageChunk) for chunk in chunks), chunks
    assert "".join(chunk.text for chunk in chunks) == answer.text, (chunks, answer)

    def forced_once(state: dict, _: object) -> object:
        answered = isinstance(state["messages"][-1], ToolMessage)
        return model.bind_tools([weather], tool_choice="auto" if answered else "weather", strict=True)

    _, call, result, *_, answer = create_react_agent(forced_once, [weather]).invoke(ASK)["messages"]
    assert call.tool_calls[0]["args"]["city"] in ("Bern", "Basel"), call
    assert result.content.endswith(": sunny"), result
    assert REAL or answer.text == "Sunny.", answer


for responses_api in (False, True):
    check(
        ChatOpenAI(
            base_url=f"{URL}/v1",
            api_key="-",
            model=MODEL,
            max_retries=0,
            max_tokens=40,
            temperature=0,
            stream_usage=True,
            use_responses_api=responses_api,
        )
    )
