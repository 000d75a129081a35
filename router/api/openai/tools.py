"""Tools in OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, Tag

from router.api.fields import TEXT_OR_OBJECT
from router.api.generation.params.validation import RequestModel
from router.api.generation.tools import Tool, ToolChoice, ToolUse
from router.errors import InvalidRequest

MAX_TOOLS: Final = 128

ToolName: TypeAlias = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class FunctionBody(RequestModel):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of an object."""
    strict: bool | None = None
    """No effect: forced calls always follow the schema; otherwise the model decides."""

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description, *(() if self.parameters is None else (self.parameters,)))


class ToolBody(RequestModel):
    """A function; tools of other types are refused."""

    type: Literal["function"]
    function: FunctionBody


class FunctionChoice(RequestModel):
    name: ToolName


class NamedToolChoice(RequestModel):
    type: Literal["function"]
    function: FunctionChoice


ToolChoiceBody: TypeAlias = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("text")] | Annotated[NamedToolChoice, Tag("object")],
    TEXT_OR_OBJECT,
]


def tool_use(tools: Sequence[ToolBody], choice: str | NamedToolChoice | None, parallel: bool) -> ToolUse:
    """The tools and the choice. Raises InvalidRequest if they contradict each other."""
    name = choice.function.name if isinstance(choice, NamedToolChoice) else None
    mode = choice if isinstance(choice, str) else None
    return choose([body.function.tool for body in tools], name, mode, parallel)


def choose(tools: Sequence[Tool], name: str | None, mode: str | None, parallel: bool) -> ToolUse:
    """`name`: the tool that must be called; otherwise `mode`: "none", "auto" or "required"."""
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("Two tools have the same name.", param="tools")
    if name is not None:
        if name not in names:
            raise InvalidRequest(
                f"tool_choice names {name}, which is not among the tools.", param="tool_choice"
            )
        return ToolUse((tools[names.index(name)],), ToolChoice.NAMED, parallel)
    if mode == "required" and not tools:
        raise InvalidRequest("tool_choice requires a call, but there are no tools.", param="tool_choice")
    return ToolUse(tuple(tools), ToolChoice(mode or "auto"), parallel)
