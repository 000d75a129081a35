"""Tools of a chat template that does not show them: described in the system message, in the model's format.

DeepSeek's descriptions are those of its model cards. Templates without calls get these as text, in Hermes'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.api.generation.output.call_formats import ToolFormat
from router.api.generation.tools import Tool

_HERMES: Final = """\
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

_DEEPSEEK_V3: Final = """\
## Tools

### Function

You have the following functions available:

{tools}

To call functions, answer with the calls in this format, without anything after them:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>FUNCTION_NAME
```json
{{"param1": "value1", "param2": "value2"}}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"""

_DEEPSEEK_V31: Final = """\
## Tools
You have access to the following tools:

{tools}

IMPORTANT: ALWAYS adhere to this exact format for tool use:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>\
{{additional_tool_calls}}<｜tool▁calls▁end｜>

Where:

- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces"""


def with_tools_described(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], format: ToolFormat | None
) -> Sequence[Mapping[str, Any]]:
    """Add `tools` and the format of calls, Hermes' unless it is DeepSeek's, to the system message."""
    if not tools:
        return messages
    instructions = _described(tools, format)
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        return [{**first, "content": f"{first['content']}\n\n{instructions}"}, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


def _described(tools: Sequence[Tool], format: ToolFormat | None) -> str:
    match format:
        case ToolFormat.DEEPSEEK_V3:
            each = (f"- `{tool.name}`:\n```json\n{_json(tool.for_template())}\n```" for tool in tools)
            return _DEEPSEEK_V3.format(tools="\n\n".join(each))
        case ToolFormat.DEEPSEEK_V31:
            each = (
                f"### {tool.name}\nDescription: {tool.description or ''}\n\n"
                f"Parameters: {_json(tool.parameters)}"
                for tool in tools
            )
            return _DEEPSEEK_V31.format(tools="\n\n".join(each))
        case _:
            return _HERMES.format(tools="\n".join(_json(tool.for_template()) for tool in tools))


def with_calls_as_text(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Append calls to the assistant's message, and turn their results into user messages."""
    return [_plain(message) for message in messages]


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [f"<tool_call>\n{_json(call['function'])}\n</tool_call>" for call in message["tool_calls"]]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join([*filter(None, [message["content"]]), *calls])}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
