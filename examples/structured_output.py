"""Constrain answers to a JSON schema and to a choice of texts.

router --model smollm2            # in another terminal
python examples/structured_output.py
"""

import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:30000/v1"), api_key="none")
model = client.models.list().data[0].id


class Race(BaseModel):
    sport: Literal["running", "swimming", "skiing"]
    runners: int
    with_baton: bool


answer = client.chat.completions.parse(
    model=model,
    messages=[{"role": "user", "content": "Describe the 4 x 100 m relay as JSON."}],
    response_format=Race,
    max_tokens=200,
    temperature=0,
)
print(answer.choices[0].message.parsed)

answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Is the sky green?"}],
    temperature=0,
    extra_body={"structured_outputs": {"choice": ["yes", "no"]}},  # vLLM's field; regex and grammar as well
)
print(answer.choices[0].message.content)
