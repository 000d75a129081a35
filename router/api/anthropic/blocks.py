"""Messages, blocks and tools of Anthropic's Messages API, and the same as OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, Tag

from router.api.cache_hints import CacheControl
from router.api.fields import TEXT_OR_LIST, Refused, WithoutEffect
from router.api.generation.params.validation import RequestModel
from router.api.openai.messages import (
    AssistantMessage,
    FunctionCall,
    MessageBody,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from router.api.openai.tools import ToolName
from router.errors import InvalidRequest

CacheMark: TypeAlias = CacheControl | None


class TextBlock(RequestModel):
    type: Literal["text"]
    text: str
    cache_control: CacheMark = None
    citations: Annotated[Any, WithoutEffect("of an earlier answer")] = None


Text: TypeAlias = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[TextBlock], Tag("list")], TEXT_OR_LIST
]


class ToolUseBlock(RequestModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheMark = None
    caller: Annotated[Any, WithoutEffect("of an earlier answer")] = None


class ToolResultBlock(RequestModel):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Text | None = None
    is_error: Annotated[bool | None, WithoutEffect("the content says so")] = None
    cache_control: CacheMark = None


class ThinkingBlock(RequestModel):
    type: Literal["thinking"]
    thinking: str
    signature: Annotated[Any, WithoutEffect("reasoning is not signed")] = None


Block: TypeAlias = Annotated[
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")
]
"""Blocks of other types (images, documents) are refused."""


class MessageParam(RequestModel):
    role: Literal["user", "assistant", "system"]
    content: Annotated[Annotated[str, Tag("text")] | Annotated[list[Block], Tag("list")], TEXT_OR_LIST]


class ToolParam(RequestModel):
    """A tool of the client; hosted tools are refused."""

    name: ToolName
    input_schema: dict[str, Any]
    """JSON Schema of an object."""
    description: str | None = None
    type: Literal["custom"] | None = None
    cache_control: CacheMark = None
    strict: Annotated[bool | None, WithoutEffect("forced calls always follow the schema")] = None
    input_examples: Annotated[Any, Refused("chat templates have no place for them", ([],))] = None
    eager_input_streaming: Annotated[Any, WithoutEffect("arguments are streamed as they come")] = None
    defer_loading: Annotated[Any, Refused("no tool search", (False,))] = None
    allowed_callers: Annotated[Any, Refused("no hosted tools", (["direct"],))] = None


def in_openais_format(message: MessageParam, number: int) -> list[MessageBody]:
    """A message, with each tool result as its own; `number`: of the message. Raises InvalidRequest."""
    if isinstance(message.content, str):
        return [_plain(message.role, message.content)]
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    if message.role == "system":
        wrong = [block for block in message.content if not isinstance(block, TextBlock)]
        if wrong:
            raise _misplaced(wrong[0].type, number)
        return [_plain("system", "\n".join(texts))]
    if message.role == "user":
        wrong = [block for block in message.content if not isinstance(block, TextBlock | ToolResultBlock)]
        if wrong:
            raise _misplaced(wrong[0].type, number)
        results: list[MessageBody] = [
            ToolMessage(role="tool", content=text_of(block.content or ""), tool_call_id=block.tool_use_id)
            for block in message.content
            if isinstance(block, ToolResultBlock)
        ]
        return [*results, *([_plain("user", "\n".join(texts))] if texts or not results else [])]
    if any(isinstance(block, ToolResultBlock) for block in message.content):
        raise _misplaced("tool_result", number)
    calls = [
        ToolCall(
            id=block.id,
            type="function",
            function=FunctionCall(name=block.name, arguments=json.dumps(block.input)),
        )
        for block in message.content
        if isinstance(block, ToolUseBlock)
    ]
    thoughts = [block.thinking for block in message.content if isinstance(block, ThinkingBlock)]
    return [
        AssistantMessage(
            role="assistant",
            content="\n".join(texts),
            tool_calls=calls or None,
            reasoning_content="\n".join(thoughts) if thoughts else None,
        )
    ]


def _plain(role: str, text: str) -> MessageBody:
    match role:
        case "user":
            return UserMessage(role="user", content=text)
        case "system":
            return SystemMessage(role="system", content=text)
    return AssistantMessage(role="assistant", content=text)


def _misplaced(kind: str, number: int) -> InvalidRequest:
    param = f"messages.{number}.content"
    return InvalidRequest(f"A {kind} block is in a message of the wrong role.", param=param)


def text_of(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)
