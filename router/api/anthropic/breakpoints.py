"""The places up to which a client asks to retain the prompt: `cache_control` of tools and blocks.

Only the chat template knows where a block ends in the prompt. So each mark becomes a conversation in which
the block ends differently: the prompt is retained as far as both are rendered equally.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from router.api.anthropic.blocks import (
    Block,
    ImageBlock,
    MessageParam,
    TextBlock,
    ThinkingBlock,
    ToolParam,
    ToolResultBlock,
    ToolUseBlock,
)
from router.api.cache_hints import CacheControl
from router.errors import InvalidRequest

_MOST: Final = 4
_OTHER_END: Final = "\ue000"
"""A character of a private use area, which no prompt continues with."""

Fields: TypeAlias = Mapping[str, Any]
"""Fields of a request's body, to be replaced."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MarkedPlace:
    """A tool or a block with `cache_control`."""

    seconds: float
    altered: Sequence[Fields]
    """Variants in which it ends differently; a chat template may render only some of them differently."""


def marked_places(
    system: str | Sequence[TextBlock] | None,
    tools: Sequence[ToolParam] | None,
    messages: Sequence[MessageParam],
    whole: CacheControl | None,
) -> list[MarkedPlace]:
    """In the order of the API: tools, system, messages. `whole`: the mark of the request itself, the last.

    Raises InvalidRequest for more than four, and for a `ttl` that is longer than one before.
    """
    places: list[MarkedPlace] = []
    shortest, count = None, 0
    for name, mark, altered in _found(system, tools, messages):
        count += 1
        _check(name + ".", mark, shortest, count)
        shortest = mark.seconds
        places.append(MarkedPlace(mark.seconds, altered))
    if whole is not None:
        _check("", whole, shortest, count + 1)
    return places


def _check(place: str, mark: CacheControl, shortest: float | None, count: int) -> None:
    if count > _MOST:
        raise InvalidRequest(
            f"A request may have cache_control at {_MOST} places; {place}cache_control is number {count}.",
            param=f"{place}cache_control",
        )
    if shortest is not None and mark.seconds > shortest:
        raise InvalidRequest(
            f"{place}cache_control.ttl 1h comes after 5m; longer ones come first: tools, system, messages.",
            param=f"{place}cache_control.ttl",
        )


def _found(
    system: str | Sequence[TextBlock] | None,
    tools: Sequence[ToolParam] | None,
    messages: Sequence[MessageParam],
) -> Iterator[tuple[str, CacheControl, Sequence[Fields]]]:
    for number, tool in enumerate(tools or ()):
        if tool.cache_control is not None:
            variants = [{"tools": _with(tools or (), number, variant)} for variant in _other_tools(tool)]
            yield f"tools.{number}", tool.cache_control, variants
    if system is not None and not isinstance(system, str):
        for number, text in enumerate(system):
            if text.cache_control is not None:
                changed = [*system[:number], *_ended_differently(text), *system[number + 1 :]]
                yield f"system.{number}", text.cache_control, [{"system": changed}]
    for number, message in enumerate(messages):
        content = message.content
        for at, block in enumerate(() if isinstance(content, str) else content):
            if not isinstance(block, ThinkingBlock) and block.cache_control is not None:
                blocks = [*content[:at], *_ended_differently(block), *content[at + 1 :]]
                other = message.model_copy(update={"content": blocks})
                place = f"messages.{number}.content.{at}"
                yield place, block.cache_control, [{"messages": _with(messages, number, other)}]


def _other_tools(tool: ToolParam) -> Iterator[ToolParam]:
    """A template may take the whole schema, or the parameters that it names, or the description alone."""
    yield tool.model_copy(update={"input_schema": {**tool.input_schema, _OTHER_END: ""}})
    parameters = tool.input_schema.get("properties")
    if isinstance(parameters, dict):
        other = {**parameters, _OTHER_END: {"type": "string"}}
        yield tool.model_copy(update={"input_schema": {**tool.input_schema, "properties": other}})
    yield tool.model_copy(update={"description": (tool.description or "") + _OTHER_END})


def _ended_differently(block: Block) -> list[Block]:
    """What replaces the block."""
    match block:
        case TextBlock():
            return [block.model_copy(update={"text": block.text + _OTHER_END})]
        case ImageBlock():
            return [block, TextBlock(type="text", text=_OTHER_END)]
        case ToolUseBlock():
            return [block.model_copy(update={"input": {**block.input, _OTHER_END: ""}})]
        case ToolResultBlock(content=None):
            return [block.model_copy(update={"content": _OTHER_END})]
        case ToolResultBlock(content=str(content)):
            return [block.model_copy(update={"content": content + _OTHER_END})]
        case ToolResultBlock(content=[*parts, last]):
            return [block.model_copy(update={"content": [*parts, *_ended_differently(last)]})]
        case ToolResultBlock():
            return [block.model_copy(update={"content": _OTHER_END})]
    raise AssertionError(f"a {block.type} block has no mark")


def _with(items: Sequence[_T], number: int, item: object) -> list[object]:
    return [*items[:number], item, *items[number + 1 :]]
