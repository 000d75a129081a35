"""Show where the time of a request went: Baton's extension `timings`.

router --model smollm2            # in another terminal
python examples/timings.py
"""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:30000/v1"), api_key="none")
model = client.models.list().data[0].id

answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Summarise: " + "The baton goes from hand to hand. " * 60}],
    max_tokens=32,
    temperature=0,
    extra_body={"timings": True},
)
timings = answer.timings
print(f"{answer.usage.prompt_tokens} prompt tokens, {answer.usage.completion_tokens} output tokens")
for name, value in timings.items():
    if name.endswith("_s") and value is not None:
        print(f"{name:16} {value * 1000:9.1f} ms")
