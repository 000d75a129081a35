"""System messages where a chat template has no place for them, and whether what is said reaches the prompt.

Templates differ in the system messages that they render: all, the first, the last, or none; some refuse those
that are not at the beginning, or in a conversation that does not alternate.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, TypeAlias

Message: TypeAlias = Mapping[str, Any]
"""{"role": ..., "content": ...} and other fields that the template uses."""

_MARK: Final = f"x{secrets.token_hex(6)}x"
"""Letters and digits, which no filter of a template changes."""


def is_system(message: Message) -> bool:
    return message["role"] in ("system", "developer")


def arrangements(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The conversation; then, if it has system messages, other ways to say the same, the closest first.

    How many there are depends on the roles alone.
    """
    yield messages
    leading = list(takewhile(is_system, messages))
    rest = messages[len(leading) :]
    begin = [_joined(leading)] if leading else []
    if len(leading) > 1:
        yield [*begin, *rest]
    if any(map(is_system, rest)):
        yield [*begin, *_said_by_user(rest)]
        yield [_joined(list(filter(is_system, messages))), *(m for m in rest if not is_system(m))]
    if leading:
        yield _said_by_user(messages)


def _joined(messages: Sequence[Message]) -> Message:
    return {**messages[0], "content": "\n\n".join(filter(None, (m["content"] for m in messages)))}


def _said_by_user(messages: Sequence[Message]) -> list[Message]:
    """System messages become part of the user's message beside them, or one of their own."""
    said: list[Message] = []
    was_system = False
    for message in messages:
        system = is_system(message)
        if system:
            message = {"role": "user", "content": message["content"]}
        if said and (system or was_system) and said[-1]["role"] == message["role"] == "user":
            other = said.pop()
            message = {**other, **message, "content": _joined([other, message])["content"]}
        said.append(message)
        was_system = system
    return said


def marked(messages: Sequence[Message]) -> list[Message]:
    """The conversation with a mark in each system message, tool's result and call."""
    return [_marked(message, number) for number, message in enumerate(messages)]


def _marked(message: Message, number: int) -> Message:
    calls = [
        {**call, "function": _marked_call(call["function"], _mark(number, index))}
        for index, call in enumerate(message.get("tool_calls", ()), start=1)
    ]
    with_calls = {**message, "tool_calls": calls} if calls else message
    if message["content"] and (is_system(message) or message["role"] == "tool"):
        return {**with_calls, "content": message["content"] + _mark(number)}
    return with_calls


def _marked_call(function: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    arguments = {**function["arguments"], mark: mark}
    return {**function, "name": function["name"] + mark, "arguments": arguments}


def lost(messages: Sequence[Message], prompt: str) -> Iterator[tuple[int, str]]:
    """Number and field of each message with a mark that is not in `prompt`, which was made of `marked`."""
    for number, message in enumerate(messages):
        if is_system(message) or message["role"] == "tool":
            if message["content"] and _mark(number) not in prompt:
                yield number, "content"
        elif any(
            _mark(number, index) not in prompt
            for index, _ in enumerate(message.get("tool_calls", ()), start=1)
        ):
            yield number, "tool_calls"


def _mark(number: int, call: int = 0) -> str:
    return f"{_MARK}{number}x{call}x"
