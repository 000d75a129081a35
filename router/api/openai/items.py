"""Items of a Responses API conversation, and their conversion to messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from router.api.fields import TEXT_OR_LIST, WithoutEffect
from router.api.generation.params.validation import RequestModel
from router.api.media.marks import joined, written
from router.api.openai.images import Detail
from router.api.openai.messages import (
    AssistantMessage,
    MessageBody,
    ToolMessage,
    for_template,
    text_message,
    tool_call,
)
from router.errors import InvalidRequest

_Stateless: TypeAlias = Annotated[Any, WithoutEffect("items are not stored")]


class InputTextPart(RequestModel):
    """Parts of other types are refused."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: Annotated[Any, WithoutEffect("of an earlier answer")] = None
    logprobs: Annotated[Any, WithoutEffect("of an earlier answer")] = None
    prompt_cache_breakpoint: Annotated[Any, WithoutEffect("prefixes are cached without marks")] = None


class InputImagePart(RequestModel):
    """An image in a message of the user, or in the output of a function."""

    type: Literal["input_image"]
    image_url: Annotated[str, Field(min_length=1)]
    """data:, or https:, http: and file: from where the server allows."""
    detail: Detail | None = None
    """`low`: the image is shrunk to 512 pixels on its longest side."""
    file_id: None = None
    prompt_cache_breakpoint: Annotated[Any, WithoutEffect("prefixes are cached without marks")] = None


_Part: TypeAlias = Annotated[
    Annotated[InputTextPart, Tag("text")] | Annotated[InputImagePart, Tag("image")],
    Discriminator(lambda part: "image" if _kind(part) == "input_image" else "text"),
]
_Content: TypeAlias = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[_Part], Tag("list")], TEXT_OR_LIST
]


class MessageItem(RequestModel):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Content
    id: _Stateless = None
    status: _Stateless = None
    phase: _Stateless = None


class FunctionCallItem(RequestModel):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    """A JSON object."""
    id: _Stateless = None
    status: _Stateless = None
    namespace: None = None
    caller: Annotated[Any, WithoutEffect("of an earlier answer")] = None
    async_: Annotated[Any, Field(alias="async"), WithoutEffect("of an earlier answer")] = None


class FunctionCallOutputItem(RequestModel):
    type: Literal["function_call_output"]
    call_id: str
    output: _Content
    id: _Stateless = None
    status: _Stateless = None


class ReasoningText(RequestModel):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(RequestModel):
    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: Annotated[Any, WithoutEffect("reasoning comes whole, without a summary")] = None
    encrypted_content: Annotated[Any, WithoutEffect("reasoning is not encrypted")] = None
    id: _Stateless = None
    status: _Stateless = None


def _kind(item: Any) -> str:
    """A discriminator: messages may omit their type."""
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "")
    return str(kind)


InputItem: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]
InputItems: TypeAlias = Annotated[list[InputItem], Field(min_length=1)]


def as_messages(items: str | Sequence[InputItem], instructions: str | None) -> list[dict[str, Any]]:
    """The conversation as messages for the chat template. Raises InvalidRequest.

    Consecutive reasoning, text and calls become one message of the assistant, and so does what follows a call
    that has no output yet: chat templates have the outputs right after the message that calls.
    """
    messages: list[MessageBody] = []
    if instructions is not None:
        messages.append(text_message("system", instructions))
    if isinstance(items, str):
        messages.append(text_message("user", items))
    else:
        messages += _merged(items)
    try:
        return for_template(messages)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param="input", code=error.code) from None


def _merged(items: Sequence[InputItem]) -> list[MessageBody]:
    messages: list[MessageBody] = []
    answer: dict[str, Any] = {}

    def close() -> None:
        if any(answer.values()) or "content" in answer:
            messages.append(AssistantMessage(role="assistant", **answer))
        answer.clear()

    def add(field: str, text: str) -> None:
        """Text of the answer, which begins a message unless the one before waits for outputs."""
        if answer.keys() - {"reasoning_content"} and "tool_calls" not in answer:
            close()
        answer[field] = "\n".join(filter(None, [answer.get(field), text]))

    for item in items:
        match item:
            case ReasoningItem():
                add("reasoning_content", "".join(part.text for part in item.content or ()))
            case FunctionCallItem():
                calls = answer.setdefault("tool_calls", [])
                calls.append(tool_call(item.call_id, item.name, item.arguments))
            case MessageItem(role="assistant"):
                add("content", _text(item.content))
            case FunctionCallOutputItem():
                close()
                messages.append(
                    ToolMessage(role="tool", content=_text(item.output), tool_call_id=item.call_id)
                )
            case MessageItem():
                close()
                messages.append(text_message(item.role, _text(item.content)))
    close()
    return messages


def _text(content: _Content) -> str:
    return content if isinstance(content, str) else joined([_piece(part) for part in content])


def _piece(part: InputTextPart | InputImagePart) -> str:
    if isinstance(part, InputTextPart):
        return part.text
    return written(part.image_url, part.detail)
