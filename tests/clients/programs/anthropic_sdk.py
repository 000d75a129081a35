"""Anthropic's package: messages, streams, tools, counting.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import sys

import anthropic

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
client = anthropic.Anthropic(base_url=URL, api_key="-", max_retries=0)
ASK = [{"role": "user", "content": "Which city has the weather station, Bern or Basel?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Bern", "Basel"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"name": "weather", "description": "Forecast for a city.", "input_schema": SCHEMA}]

message = client.messages.create(model=MODEL, max_tokens=8, messages=ASK, system="Be brief.")
assert message.content[0].type == "text", message
assert message.usage.output_tokens > 0, message

one = {"disable_parallel_tool_use": True}  # a small model may call until it is cut off
for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
    message = client.messages.create(
        model=MODEL, max_tokens=100, messages=ASK, tools=TOOLS, tool_choice=choice | one
    )
    assert message.stop_reason == "tool_use", message
    assert message.content[0].input["city"] in ("Bern", "Basel"), message

with client.messages.stream(
    model=MODEL, max_tokens=100, messages=ASK, tools=TOOLS, tool_choice={"type": "any"}
) as stream:
    final = stream.get_final_message()
assert final.content[0].input["city"] in ("Bern", "Basel"), final
with client.messages.stream(model=MODEL, max_tokens=8, messages=ASK) as stream:
    text = "".join(stream.text_stream)
    assert text == stream.get_final_message().content[0].text

count = client.messages.count_tokens(model=MODEL, messages=ASK, tools=TOOLS)
assert count.input_tokens > 10, count
try:
    client.messages.create(model="none such", max_tokens=8, messages=ASK)
except anthropic.NotFoundError:
    pass
else:
    raise AssertionError("a wrong model was accepted")

if not REAL:
    message = client.messages.create(model=MODEL, max_tokens=100, messages=ASK, tools=TOOLS)
    call = message.content[-1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history = [
        *ASK,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    message = client.messages.create(model=MODEL, max_tokens=100, messages=history, tools=TOOLS)
    assert message.content[0].text == "Sunny.", message
