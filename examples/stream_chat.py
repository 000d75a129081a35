"""Stream a chat answer with OpenAI's client.

router --model smollm2            # in another terminal
python examples/stream_chat.py "What is a relay race?"
"""

import os
import sys

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:30000/v1"), api_key="none")
model = client.models.list().data[0].id
question = sys.argv[1] if len(sys.argv) > 1 else "What is a relay race?"

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": question}],
    max_tokens=80,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:  # the last chunk has the usage and no choice
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n{chunk.usage.prompt_tokens} prompt tokens, {chunk.usage.completion_tokens} output tokens")
