"""Describes tools as text, in Hermes' format, for models whose chat template does not support them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.processing.tools import Tool

_INSTRUCTIONS: Final = """\
You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> \
XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_tools_described(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
) -> Sequence[Mapping[str, Any]]:
    """Add `tools` and the format of calls to the system message."""
    if not tools:
        return messages
    signatures = "\n".join(json.dumps(tool.for_template(), ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=signatures)
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        return [{**first, "content": f"{first['content']}\n\n{instructions}"}, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


def with_calls_as_text(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Append calls to the assistant's message, and turn their results into user messages."""
    return [_plain(message) for message in messages]


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message["tool_calls"]
    ]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join([*filter(None, [message["content"]]), *calls])}
