"""Answers of Anthropic's Messages API as types; see router/frontend/openai/answers/schemas.py."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

_closed = with_config(ConfigDict(extra="forbid"))


@_closed
class TextContent(TypedDict):
    type: Literal["text"]
    text: str


@_closed
class ToolUseContent(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Any


@_closed
class ThinkingContent(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


ContentBlock: TypeAlias = TextContent | ToolUseContent | ThinkingContent


@_closed
class OutputTokens(TypedDict):
    thinking_tokens: int
    """Tokens up to and including `</think>`."""


@_closed
class MessageUsage(TypedDict):
    input_tokens: int
    """Tokens that were neither read from the prefix cache nor retained in it."""
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    """Tokens that were computed and are retained, in requests with `cache_control`."""
    output_tokens: int
    output_tokens_details: OutputTokens


@_closed
class Message(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessageUsage


@_closed
class MessageErrorDetail(TypedDict):
    type: str
    message: str


@_closed
class MessageError(TypedDict):
    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str
