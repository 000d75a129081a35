"""Types of the answers and events of Anthropic's Messages API; see openai/answers/schemas.py."""

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
class CacheCreation(TypedDict):
    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


@_closed
class InputUsage(TypedDict):
    input_tokens: int
    """Tokens that were neither read from the prefix cache nor retained in it."""
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    """Tokens that were computed and are retained: those before the last `cache_control`."""
    cache_creation: CacheCreation
    """The same by the time for which they are retained."""


@_closed
class MessageUsage(InputUsage):
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


@_closed
class MessageStart(TypedDict):
    type: Literal["message_start"]
    message: Message


@_closed
class BlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: ContentBlock


@_closed
class TextPiece(TypedDict):
    type: Literal["text_delta"]
    text: str


@_closed
class ThinkingPiece(TypedDict):
    type: Literal["thinking_delta"]
    thinking: str


@_closed
class ArgumentsPiece(TypedDict):
    type: Literal["input_json_delta"]
    partial_json: str


@_closed
class BlockDelta(TypedDict):
    type: Literal["content_block_delta"]
    index: int
    delta: TextPiece | ThinkingPiece | ArgumentsPiece


@_closed
class BlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: int


@_closed
class Stop(TypedDict):
    stop_reason: Any
    stop_sequence: str | None


@_closed
class MessageEnd(TypedDict):
    type: Literal["message_delta"]
    delta: Stop
    usage: MessageUsage


@_closed
class MessageStop(TypedDict):
    type: Literal["message_stop"]


MessageEvent: TypeAlias = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageEnd | MessageStop | MessageError
)
