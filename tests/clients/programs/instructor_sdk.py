"""instructor: objects of a schema, as answers and as calls, over chat completions and responses.

Arguments: base URL, "real" or "scripted", name of the model.
"""

import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, Field

URL, REAL, MODEL = sys.argv[1], sys.argv[2] == "real", sys.argv[3]
ASK = [{"role": "user", "content": "Which city, Bern or Basel?"}]


class City(BaseModel, extra="forbid"):
    """A city. Without "forbid", a small model may add properties until its context is full."""

    city: Literal["Bern", "Basel"] = Field(description="Its name.")


client = openai.OpenAI(base_url=f"{URL}/v1", api_key="-", max_retries=0)
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS, instructor.Mode.RESPONSES_TOOLS):
    patched = instructor.from_openai(client, mode=mode)
    city = patched.create(model=MODEL, messages=ASK, response_model=City, max_retries=0)
    assert city.city in ("Bern", "Basel"), (mode, city)
