"""Tools of a request, and whether the model must call one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from engine.grammar.json_schema.document import relocated


class ToolChoice(Enum):
    NONE = "none"
    """Tools are not in the prompt."""
    AUTO = "auto"
    """The model decides; its own format of calls is parsed."""
    REQUIRED = "required"
    """At least one call, enforced by a grammar (`router.api.generation.forced`)."""
    NAMED = "named"
    """One call of the only tool in `ToolUse.tools`, enforced by a grammar."""


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
        """Tools in the prompt."""
        return () if self.choice is ToolChoice.NONE else self.tools

    @property
    def forced(self) -> bool:
        return self.choice in (ToolChoice.REQUIRED, ToolChoice.NAMED)


NO_TOOLS: Final = ToolUse()


def forced_schema(use: ToolUse) -> dict[str, Any]:
    """JSON Schema of the whole output of a forced choice, where the model's own format is not enforced.

    Named: the arguments. Required: a list of {"name": ..., "arguments": ...}.
    """
    if use.choice is ToolChoice.NAMED:
        [tool] = use.tools
        return dict(tool.parameters)
    definitions = {
        f"tool.{tool.name}": relocated(dict(tool.parameters), f"#/$defs/tool.{tool.name}")
        for tool in use.tools
    }
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                "arguments": {"$ref": f"#/$defs/tool.{tool.name}"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in use.tools
    ]
    schema: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "$defs": definitions}
    return schema if use.parallel else schema | {"maxItems": 1}
