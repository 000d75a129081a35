"""The openai package: tools, structured output, responses.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="-", max_retries=0)
assert client.models.retrieve(MODEL).id == client.models.list().data[0].id
ASK = [{"role": "user", "content": "Which city has the weather station, Bern or Basel?"}]


class City(BaseModel, extra="forbid"):
    """A city. Without "forbid", a small model may add properties until its context is full."""

    city: Literal["Bern", "Basel"]


TOOL = openai.pydantic_function_tool(City, name="weather", description="Forecast for a city.")

answer = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=City)
assert answer.choices[0].message.parsed.city in ("Bern", "Basel"), answer

for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
    answer = client.chat.completions.parse(model=MODEL, messages=ASK, tools=[TOOL], tool_choice=choice)
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.parsed_arguments.city in ("Bern", "Basel"), answer

with client.chat.completions.stream(
    model=MODEL, messages=ASK, tools=[TOOL], tool_choice="required"
) as stream:
    kinds = {event.type for event in stream}
    final = stream.get_final_completion()
assert "tool_calls.function.arguments.done" in kinds, kinds
assert final.choices[0].finish_reason == "tool_calls", final

response = client.responses.parse(model=MODEL, input="Bern or Basel?", text_format=City)
assert response.output_parsed.city in ("Bern", "Basel"), response
tool = {"type": "function", "name": "weather", "parameters": City.model_json_schema(), "strict": True}
with client.responses.stream(model=MODEL, input="Bern?", tools=[tool], tool_choice="required") as stream:
    for _ in stream:
        pass
    response = stream.get_final_response()
call = response.output[0]
assert json.loads(call.arguments)["city"] in ("Bern", "Basel"), response

if not REAL:
    answer = client.chat.completions.create(model=MODEL, messages=ASK, tools=[TOOL])
    call = answer.choices[0].message.tool_calls[0]
    history = [*ASK, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL])
    assert answer.choices[0].message.content == "Sunny.", answer
