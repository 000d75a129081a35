"""strands-agents: its agent streams every answer, and raises an exception if one is cut off.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import sys
from typing import Literal

from strands import Agent, tool
from strands.hooks import AfterToolCallEvent
from strands.models.openai import OpenAIModel
from strands.types.exceptions import MaxTokensReachedException

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]


@tool
def weather(city: Literal["Bern", "Basel"]) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


def agent(*tools: object, **params: object) -> Agent:
    client = {"base_url": f"{URL}/v1", "api_key": "-", "max_retries": 0}
    model = OpenAIModel(client_args=client, model_id=MODEL, params={"temperature": 0, **params})
    return Agent(model, tools=list(tools), callback_handler=None)


def stop_forcing(event: AfterToolCallEvent) -> None:
    """Then a small model may ramble; a stop string ends its answer before it is cut off."""
    event.agent.model.update_config(params={"temperature": 0, "max_tokens": 200, "stop": [" "]})


answer = agent(max_tokens=200)("Say hello.")
assert str(answer).strip(), answer
assert answer.stop_reason == "end_turn", answer
assert answer.metrics.accumulated_usage["outputTokens"] > 0, answer
for streamed in (True, False):
    try:
        agent(max_tokens=2, stream=streamed)("Count from one to a hundred.")
    except MaxTokensReachedException:
        continue
    raise AssertionError("an answer was not cut off")
forcing = agent(weather, max_tokens=200, tool_choice="required", parallel_tool_calls=False)
forcing.add_hook(stop_forcing)
answer = forcing("Weather in Bern?")
_, call, result, *_ = forcing.messages
assert call["content"][-1]["toolUse"]["input"]["city"] in ("Bern", "Basel"), call
assert result["content"][0]["toolResult"]["status"] == "success", result
assert REAL or str(answer).strip() == "Sunny.", answer
