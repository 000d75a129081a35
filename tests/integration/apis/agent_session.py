"""One session of a coding agent, in the shapes that Qwen Code and opencode (OpenAI) and Claude Code
(Anthropic) send: a long system prompt, many tools with nested schemas, turns with calls and results.
"""

from __future__ import annotations

import json
from typing import Any

_STRING: dict[str, Any] = {"type": "string"}


def _schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_TODO: dict[str, Any] = {
    "type": "object",
    "properties": {
        "content": {"type": "string", "minLength": 1},
        "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
        "priority": {"enum": ["high", "medium", "low"]},
    },
    "required": ["content", "status"],
    "additionalProperties": False,
}
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "read_file": (
        "Reads a file.\n\nUsage:\n- `absolute_path` must be absolute.\n- Reads <2000 lines & cuts others.",
        _schema(
            ["absolute_path"],
            absolute_path=_STRING,
            offset={"type": "integer", "minimum": 0},
            limit={"type": ["integer", "null"]},
        ),
    ),
    "edit": (
        "Replaces text within a file.",
        _schema(
            ["file_path", "old_string", "new_string"],
            file_path=_STRING,
            old_string=_STRING,
            new_string=_STRING,
            replace_all={"type": "boolean", "default": False},
        ),
    ),
    "run_shell_command": (
        "Executes a command as `bash -c <command>`.",
        _schema(["command"], command=_STRING, timeout={"type": "number"}, is_background={"type": "boolean"}),
    ),
    "grep_search": (
        "Searches files.",
        _schema(
            ["pattern"],
            pattern={**_STRING, "description": "A regular expression, such as `def \\w+\\(`"},
            output_mode={"type": "string", "enum": ["content", "files_with_matches", "count"]},
            paths={"type": "array", "items": _STRING, "minItems": 1},
        ),
    ),
    "web_fetch": ("Fetches a page.", _schema(["url"], url={**_STRING, "format": "uri"}, prompt=_STRING)),
    "todo_write": (
        "Writes the list of tasks.",
        _schema(["todos"], todos={"type": "array", "items": {"$ref": "#/$defs/todo"}, "minItems": 1})
        | {"$defs": {"todo": _TODO}},
    ),
    "task": (
        "Starts an agent.",
        _schema(
            ["description", "prompt"],
            description=_STRING,
            prompt=_STRING,
            options={"anyOf": [_schema([], model=_STRING, depth={"type": "integer"}), {"type": "null"}]},
        ),
    ),
    "mcp__git__log": ("", {"type": "object", "properties": {"count": {"type": "integer"}}}),
}
SYSTEM = (
    "You are an interactive CLI agent that helps with software engineering.\n\n# Core mandates\n"
    "- Follow the conventions of the project.\n- Use <system-reminder> tags for what they are.\n\n"
    "<env>\nWorking directory: /home/me/project\nPlatform: linux\n</env>\n"
)
FILE = '     1\timport os\n     2\tdef greet(name):\n     3\t    return f"Hello, {name}!"  # </parameter>\n'
EDIT = {
    "file_path": "/home/me/project/greet.py",
    "old_string": 'return f"Hello, {name}!"',
    "new_string": 'if not name:\n        raise ValueError("no name")\n    return f"Hello, {name}!"',
}
STEPS: list[tuple[str, list[tuple[str, dict[str, Any], str]]]] = [
    (
        "I'll look at the file first.",
        [
            ("read_file", {"absolute_path": "/home/me/project/greet.py", "limit": 200}, FILE),
            ("grep_search", {"pattern": r"greet\(", "paths": ["src", "tests"]}, "tests/test_greet.py:3"),
        ],
    ),
    ("", [("edit", EDIT, "The file has been updated.")]),
    ("", [("run_shell_command", {"command": "pytest -q 2>&1 | tail -3", "timeout": 60000}, "1 passed")]),
]
"""Text of the assistant, and its calls with their results."""
TODOS = {
    "todos": [
        {"content": 'Check the name — 名前 & "quotes"', "status": "completed", "priority": "high"},
        {"content": "Document\nit", "status": "pending"},
    ]
}
"""Arguments of the call that comes next."""
ASK = "Add a check for empty names to greet()."


def openai_body(steps: int = len(STEPS)) -> dict[str, Any]:
    """The request after this number of steps; by default the last one."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": [{"type": "text", "text": ASK}]},
    ]
    for number, (text, calls) in enumerate(STEPS[:steps]):
        messages.append(
            {
                "role": "assistant",
                "content": text or None,
                "tool_calls": [
                    {
                        "id": f"call_{number}{k}",
                        "type": "function",
                        "function": {"name": name, "arguments": json.dumps(arguments)},
                    }
                    for k, (name, arguments, _) in enumerate(calls)
                ],
            }
        )
        messages += [
            {"role": "tool", "tool_call_id": f"call_{number}{k}", "content": result}
            for k, (_, _, result) in enumerate(calls)
        ]
    tools = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}
        for name, (text, schema) in TOOLS.items()
    ]
    options = {"stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": 400}
    return {"model": "small", "messages": messages, "tools": tools, "stream": True, **options}


def anthropic_body() -> dict[str, Any]:
    cached = {"cache_control": {"type": "ephemeral"}}
    messages: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is 2026-11-28.\n</system-reminder>"},
                {"type": "text", "text": ASK},
            ],
        }
    ]
    for number, (text, calls) in enumerate(STEPS):
        uses = [
            {"type": "tool_use", "id": f"toolu_{number}{k}", "name": name, "input": arguments}
            for k, (name, arguments, _) in enumerate(calls)
        ]
        said = [{"type": "text", "text": text}] if text else []
        messages.append({"role": "assistant", "content": [*said, *uses]})
        results = [
            {"type": "tool_result", "tool_use_id": f"toolu_{number}{k}", "content": result}
            for k, (_, _, result) in enumerate(calls)
        ]
        messages.append({"role": "user", "content": results})
    messages[-1]["content"][-1] |= cached
    tools = [
        {"name": name, "description": text, "input_schema": schema} for name, (text, schema) in TOOLS.items()
    ]
    return {
        "model": "small",
        "max_tokens": 400,
        "stream": True,
        "system": [{"type": "text", "text": "You are a CLI."}, {"type": "text", "text": SYSTEM, **cached}],
        "messages": messages,
        "tools": tools,
    }
