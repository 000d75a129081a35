"""aisuite: text, a stream, its loop of tools, and a schema, over its provider for OpenAI's chat completions.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import json
import sys

import aisuite

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", f"openai:{sys.argv[3]}"
ASK = [{"role": "user", "content": "Which city, Bern or Basel?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Bern", "Basel"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def weather(city: str) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


client = aisuite.Client({"openai": {"base_url": f"{URL}/v1", "api_key": "-", "max_retries": 0}})
create = client.chat.completions.create

text = create(model=MODEL, messages=ASK, max_tokens=40, temperature=0)
assert text.choices[0].message.content, text
chunks = [*create(model=MODEL, messages=ASK, max_tokens=40, temperature=0, stream=True)]
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert streamed == text.choices[0].message.content, (streamed, text)

schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
typed = create(model=MODEL, messages=ASK, response_format=schema)
assert json.loads(typed.choices[0].message.content)["city"] in ("Bern", "Basel"), typed

if not REAL:
    ended = create(model=MODEL, messages=ASK, tools=[weather], max_turns=2)
    assert ended.choices[0].message.content == "Sunny.", ended
    results = [m["content"] for m in ended.choices[0].intermediate_messages if isinstance(m, dict)]
    assert results == ['"Bern: sunny"'], results
