"""Let the model call a function, run it, and send its result back.

    router --model smollm2            # in another terminal
    python examples/tools.py

`tool_choice="required"` constrains the output to a call that fits the schema, so even a small model calls.
A larger model decides by itself with "auto".
"""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:30000/v1"), api_key="none")
model = client.models.list().data[0].id


def weather(city: str, unit: str) -> str:
    return json.dumps({"city": city, "temperature": 21, "unit": unit})


tools = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Current weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Paris", "Rome"]},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    }
]
messages = [{"role": "user", "content": "How warm is it in Paris, in celsius?"}]

asked = client.chat.completions.create(
    model=model,
    messages=messages,
    tools=tools,
    tool_choice="required",
    parallel_tool_calls=False,
    max_tokens=100,
    temperature=0,
)
[call] = asked.choices[0].message.tool_calls
arguments = json.loads(call.function.arguments)
print("call:", call.function.name, json.dumps(arguments))

result = weather(**arguments)
messages += [asked.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": result}]
answer = client.chat.completions.create(model=model, messages=messages, max_tokens=60, temperature=0)
print("answer:", answer.choices[0].message.content)
