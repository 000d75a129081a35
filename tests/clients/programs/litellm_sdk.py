"""litellm: completion with tools, structured output, streams.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import json
import sys
from typing import Literal

import litellm
from pydantic import BaseModel

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
WHERE = {"api_base": f"{URL}/v1", "api_key": "-", "num_retries": 0}
ASK = [{"role": "user", "content": "Bern or Basel?"}]


class City(BaseModel, extra="forbid"):
    """A city. Without "forbid", a small model may add properties until its context is full."""

    city: Literal["Bern", "Basel"]


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": City.model_json_schema()}}]

answer = litellm.completion(f"openai/{MODEL}", ASK, response_format=City, **WHERE)
assert City.model_validate_json(answer.choices[0].message.content), answer
answer = litellm.completion(f"openai/{MODEL}", ASK, tools=TOOLS, tool_choice="required", **WHERE)
call = answer.choices[0].message.tool_calls[0]
assert json.loads(call.function.arguments)["city"] in ("Bern", "Basel"), answer
stream = litellm.completion(f"openai/{MODEL}", ASK, max_tokens=8, stream=True, **WHERE)
assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)
if not REAL:
    answer = litellm.completion(f"openai/{MODEL}", ASK, tools=TOOLS, **WHERE)
    assert answer.choices[0].finish_reason == "tool_calls", answer
