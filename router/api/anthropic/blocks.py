"""Messages, blocks and tools of Anthropic's Messages API, and the same as OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, Tag

from router.api.cache_hints import CacheControl
from router.api.fields import TEXT_OR_LIST, Refused, WithoutEffect
from router.api.generation.params.validation import RequestModel
from router.api.media.marks import joined, written
from router.api.openai.messages import AssistantMessage, MessageBody, ToolMessage, text_message, tool_call
from router.api.openai.tools import ToolName
from router.errors import InvalidRequest

CacheMark: TypeAlias = CacheControl | None


class TextBlock(RequestModel):
    type: Literal["text"]
    text: str
    cache_control: CacheMark = None
    citations: Annotated[Any, WithoutEffect("of an earlier answer")] = None


class Base64Image(RequestModel):
    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: Annotated[str, Field(min_length=1)]


class ImageAtUrl(RequestModel):
    type: Literal["url"]
    url: Annotated[str, Field(min_length=1)]
    """https: or http:, from hosts that the server allows; or data:."""


class ImageBlock(RequestModel):
    type: Literal["image"]
    source: Annotated[Base64Image | ImageAtUrl, Field(discriminator="type")]
    cache_control: CacheMark = None

    @property
    def piece(self) -> str:
        """The image as a piece of a content."""
        source = self.source
        if isinstance(source, ImageAtUrl):
            return written(source.url)
        return written(f"data:{source.media_type};base64,{source.data}")


Text: TypeAlias = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[TextBlock], Tag("list")], TEXT_OR_LIST
]
_Result: TypeAlias = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[Annotated[TextBlock | ImageBlock, Field(discriminator="type")]], Tag("list")],
    TEXT_OR_LIST,
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
    content: _Result | None = None
    is_error: Annotated[bool | None, WithoutEffect("the content says so")] = None
    cache_control: CacheMark = None


class ThinkingBlock(RequestModel):
    type: Literal["thinking"]
    thinking: str
    signature: Annotated[Any, WithoutEffect("reasoning is not signed")] = None


Block: TypeAlias = Annotated[
    TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")
]
"""Blocks of other types, such as documents, are refused."""


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


_BLOCKS: Final[dict[str, tuple[type, ...]]] = {
    "system": (TextBlock,),
    "user": (TextBlock, ImageBlock, ToolResultBlock),
    "assistant": (TextBlock, ToolUseBlock, ThinkingBlock),
}
"""Blocks that the messages of a role may have."""


def in_openais_format(message: MessageParam, number: int) -> list[MessageBody]:
    """A message, with each tool result as its own; `number`: of the message. Raises InvalidRequest."""
    if isinstance(message.content, str):
        return [text_message(message.role, message.content)]
    for block in message.content:
        if not isinstance(block, _BLOCKS[message.role]):
            raise InvalidRequest(
                f"A {block.type} block is in a message of the wrong role.", param=f"messages.{number}.content"
            )
    texts, thoughts, calls, results = list[str](), list[str](), list[Any](), list[MessageBody]()
    for block in message.content:
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ImageBlock():
                texts.append(block.piece)
            case ThinkingBlock(thinking=text):
                thoughts.append(text)
            case ToolUseBlock():
                calls.append(tool_call(block.id, block.name, json.dumps(block.input)))
            case ToolResultBlock():
                text, call_id = text_of(block.content or ""), block.tool_use_id
                results.append(ToolMessage(role="tool", content=text, tool_call_id=call_id))
    text = joined(texts)
    if message.role == "assistant":
        thought = "\n".join(thoughts) if thoughts else None
        return [
            AssistantMessage(
                role="assistant", content=text, tool_calls=calls or None, reasoning_content=thought
            )
        ]
    return [*results, *([text_message(message.role, text)] if texts or not results else [])]


def text_of(content: str | Sequence[TextBlock | ImageBlock]) -> str:
    """With marks of images."""
    if isinstance(content, str):
        return content
    return joined([block.piece if isinstance(block, ImageBlock) else block.text for block in content])
