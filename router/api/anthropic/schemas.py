"""Types of the answers and events of Anthropic's Messages API; see openai/answers/schemas.py."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from router.api.generation.audit.answer import Extras
from router.api.openai.answers.schemas import Closed


class TextContent(Closed):
    type: Literal["text"]
    text: str


class ToolUseContent(Closed):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Any


class ThinkingContent(Closed):
    type: Literal["thinking"]
    thinking: str
    signature: str


ContentBlock: TypeAlias = TextContent | ToolUseContent | ThinkingContent


class OutputTokens(Closed):
    thinking_tokens: int
    """Tokens up to and including `</think>`."""


class CacheCreation(Closed):
    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class InputUsage(Closed):
    input_tokens: int
    """Tokens that were neither read from the prefix cache nor retained in it."""
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    """Tokens that were computed and are retained: those before the last `cache_control`."""
    cache_creation: CacheCreation
    """The same by the time for which they are retained."""


class MessageUsage(InputUsage):
    output_tokens: int
    output_tokens_details: OutputTokens


class Message(Closed, Extras):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessageUsage


class InputTokens(Closed):
    input_tokens: int


class MessageErrorDetail(Closed):
    type: str
    message: str


class MessageError(Closed):
    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str


class MessageStart(Closed):
    type: Literal["message_start"]
    message: Message


class BlockStart(Closed):
    type: Literal["content_block_start"]
    index: int
    content_block: ContentBlock


class TextPiece(Closed):
    type: Literal["text_delta"]
    text: str


class ThinkingPiece(Closed):
    type: Literal["thinking_delta"]
    thinking: str


class ArgumentsPiece(Closed):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(Closed):
    type: Literal["content_block_delta"]
    index: int
    delta: TextPiece | ThinkingPiece | ArgumentsPiece


class BlockStop(Closed):
    type: Literal["content_block_stop"]
    index: int


class Stop(Closed):
    stop_reason: Any
    stop_sequence: str | None


class MessageEnd(Closed, Extras):
    type: Literal["message_delta"]
    delta: Stop
    usage: MessageUsage


class MessageStop(Closed):
    type: Literal["message_stop"]


MessageEvent: TypeAlias = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageEnd | MessageStop | MessageError
)
