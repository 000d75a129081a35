"""Types of the events of a streamed message; see router/frontend/openai/answers/schemas.py."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from router.frontend.anthropic.answers import ContentBlock, Message, MessageError, MessageUsage

_closed = with_config(ConfigDict(extra="forbid"))


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
