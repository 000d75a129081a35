"""Tools of a request, and whether the model must call one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

__all__ = ["NO_TOOLS", "Tool", "ToolChoice", "ToolUse", "forced_schema"]


class ToolChoice(Enum):
    NONE = "none"
    """The model is not told of the tools."""
    AUTO = "auto"
    """The model decides; its own format of calls is parsed."""
    REQUIRED = "required"
    """At least one call, in JSON, enforced by a grammar."""
    NAMED = "named"
    """One call of the only tool in `ToolUse.tools`; the grammar is that of its arguments."""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of an object."""

    def for_template(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function | {"parameters": dict(self.parameters)}}


@dataclass(frozen=True, slots=True)
class ToolUse:
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice.AUTO
    parallel: bool = True
    """Whether one answer may have several calls."""

    @property
    def offered(self) -> tuple[Tool, ...]:
        """Tools that the model is told of."""
        return () if self.choice is ToolChoice.NONE else self.tools

    @property
    def forced(self) -> bool:
        return self.choice in (ToolChoice.REQUIRED, ToolChoice.NAMED)


NO_TOOLS: Final = ToolUse()


def forced_schema(use: ToolUse) -> dict[str, Any]:
    """JSON Schema of the whole output, for a forced choice.

    Named: the arguments. Required: a list of {"name": ..., "arguments": ...}.
    """
    if use.choice is ToolChoice.NAMED:
        [tool] = use.tools
        return dict(tool.parameters)
    definitions: dict[str, Any] = {}
    calls = []
    for tool in use.tools:
        parameters = _with_own_names(dict(tool.parameters), tool.name)
        for word in _DEFINITIONS & parameters.keys():
            own = {f"{tool.name}.{name}": schema for name, schema in parameters.pop(word).items()}
            definitions.setdefault(word, {}).update(own)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}, "minItems": 1}
    return schema | definitions | ({} if use.parallel else {"maxItems": 1})


_DEFINITIONS: Final = frozenset({"$defs", "definitions"})


def _with_own_names(schema: Any, owner: str) -> Any:
    """Prefix the names of definitions by the owner's, so that several schemas can be combined."""
    if isinstance(schema, dict):
        return {
            key: f"#/{value.split('/')[1]}/{owner}.{value.split('/', 2)[2]}"
            if key == "$ref"
            and isinstance(value, str)
            and value.split("/")[1:2] in (["$defs"], ["definitions"])
            else _with_own_names(value, owner)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_with_own_names(value, owner) for value in schema]
    return schema
