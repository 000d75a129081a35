"""Scripted answers with tool calls and reasoning, for tests of the APIs."""

from __future__ import annotations

import json
from typing import Any

from router.api.generation.output.formats import OutputFormats, ReasoningFormat, ToolFormat
from tests.integration.frontends import Frontends, say

EOS = 2
BERN = {"city": "Bern", "days": [1, 2]}
CALL = f"<tool_call>\n{json.dumps({'name': 'weather', 'arguments': BERN})}\n</tool_call>"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Forecast.", "parameters": SCHEMA},
}
ASK: list[Any] = [{"role": "user", "content": "Weather in Bern?"}]


def answer_with(frontends: Frontends, text: str) -> None:
    frontends.dispatcher.script = say(frontends.generation.tokenizer, text, eos=EOS)


def reason(frontends: Frontends) -> None:
    frontends.generation.formats = OutputFormats(ToolFormat.HERMES, ReasoningFormat.THINK)  # type: ignore[misc]
    answer_with(frontends, f"<think>\nBern it is.\n</think>\n\nWait.\n{CALL}")
