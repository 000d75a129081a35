"""The messages of a chat: one model per role, after OpenAI's reference, and the rules between them.

Unsupported fields may be null, as in answers that clients send back; other values are refused. Chat
templates decide whether `name` has an effect. If one would ignore `tool_calls`, rendering refuses them.
An assistant's message may be any answer of this server, also one that was cut off, with the fields that
other servers add to theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError, from_json

from router.api.fields import WithoutEffect
from router.api.generation.params.validation import RequestModel
from router.api.media.marks import joined
from router.api.openai.images import OTHER_MEDIA, ImagePart, image_text
from router.errors import InvalidRequest


class TextPart(RequestModel):
    """A text in a message's content."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None
    """No effect: prefixes are cached without marks."""
    cache_control: dict[str, Any] | None = None
    """Anthropic's; no effect."""


_PART_FIELDS: Final = frozenset(TextPart.model_fields)
_CACHE_MARKS: Final = ("prompt_cache_breakpoint", "cache_control")
_Parts: TypeAlias = Annotated[list[TextPart | ImagePart], Field(min_length=1)]


def content_text(value: Any) -> Any:
    """The content as text, with marks of images; several texts are joined by line breaks."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("content", "Input should be a string or a list of content parts")
    return joined([_text_of(part, number) for number, part in enumerate(value)])


def _text_of(part: Any, number: int) -> str:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind == "image_url":
        return image_text(part, number)
    if kind != "text" or not isinstance(part.get("text"), str):
        what = "has no text" if kind == "text" else f"is of type {kind!r}"[:100]
        if kind in OTHER_MEDIA:
            what += f", and {OTHER_MEDIA[kind]} are not supported".replace("audio are", "audio is")
        raise PydanticCustomError(
            "content",
            "Part {number} {what}; only parts of type 'text' and 'image_url' are supported",
            {"number": number, "what": what},
        )
    wrong = part.keys() - _PART_FIELDS
    wrong |= {mark for mark in _CACHE_MARKS if not isinstance(part.get(mark), dict | None)}
    if wrong:
        raise PydanticCustomError(
            "content",
            "Part {number} has a field that is not supported: {field}",
            {"number": number, "field": min(wrong)[:100]},
        )
    text: str = part["text"]
    return text


_Content: TypeAlias = Annotated[str, BeforeValidator(content_text, json_schema_input_type=str | _Parts)]
_AnswerContent: TypeAlias = Annotated[
    str | None,
    BeforeValidator(
        lambda value: "" if value == [] else content_text(value),
        json_schema_input_type=str | list[TextPart] | None,
    ),
]


class SystemMessage(RequestModel):
    role: Literal["system", "developer"]
    content: _Content
    name: str | None = None


class UserMessage(RequestModel):
    role: Literal["user"]
    content: _Content
    name: str | None = None


class FunctionCall(RequestModel):
    name: str
    arguments: str | None
    """A JSON object; for other text see `arguments_of`."""


class ToolCall(RequestModel):
    id: str
    type: Literal["function"]
    function: FunctionCall
    index: Annotated[Any, WithoutEffect("of a streamed answer's deltas"), Field(exclude=True)] = None


class AssistantMessage(RequestModel):
    role: Literal["assistant"]
    content: _AnswerContent = None
    """Absent, null and [] are the empty text."""
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    reasoning_content: str | None = None
    """Reasoning of an earlier answer; the template decides whether the model sees it."""
    reasoning: Annotated[str | None, Field(exclude=True)] = None
    """The same, as vLLM and OpenRouter name it; `reasoning_content` wins."""
    reasoning_details: Annotated[
        Any, WithoutEffect("OpenRouter's; the text is in `reasoning`"), Field(exclude=True)
    ] = None


class ToolMessage(RequestModel):
    role: Literal["tool"]
    content: _Content
    tool_call_id: str
    """Id of a call in the preceding assistant message."""
    name: str | None = None


MessageBody: TypeAlias = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def text_message(role: str, text: str) -> MessageBody:
    """A message of text alone; `role` is not "tool"."""
    match role:
        case "user":
            return UserMessage(role="user", content=text)
        case "assistant":
            return AssistantMessage(role="assistant", content=text)
    return SystemMessage(role="system", content=text)


def tool_call(call_id: str, name: str, arguments: str) -> ToolCall:
    return ToolCall(id=call_id, type="function", function=FunctionCall(name=name, arguments=arguments))


def for_template(messages: Sequence[MessageBody]) -> list[dict[str, Any]]:
    """The conversation in the format of chat templates. Raises InvalidRequest.

    Absent fields are left out; the arguments of a call are an object, not the JSON text that OpenAI sends.
    """
    _check_tool_answers(messages)
    return [_for_template(message) for message in messages]


def _for_template(message: MessageBody) -> dict[str, Any]:
    fields = message.model_dump(exclude_none=True) | {"content": message.content or ""}
    fields.pop("annotations", None)
    if isinstance(message, AssistantMessage) and message.reasoning is not None:
        fields.setdefault("reasoning_content", message.reasoning)
    if not fields.get("tool_calls"):
        fields.pop("tool_calls", None)
    for call in fields.get("tool_calls", ()):
        call["function"]["arguments"] = arguments_of(call["function"].get("arguments") or "")
    return fields


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call, which a model wrote: {} for none; other text that is no JSON object, such as
    that of an answer that was cut off, as {"invalid_json": text}.
    """
    try:
        value = from_json(text, allow_inf_nan=False) if text.strip() else {}
    except ValueError:
        value = text
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"invalid_json": text}


def _check_tool_answers(messages: Sequence[MessageBody]) -> None:
    """Check that every call is answered by one tool message before any other message."""
    open_calls: set[str] = set()
    for number, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                raise InvalidRequest(
                    "A tool message must answer a call of the assistant's message before, once.",
                    param=f"messages.{number}.tool_call_id",
                )
            open_calls.remove(message.tool_call_id)
            continue
        _require_none_open(open_calls, number)
        if isinstance(message, AssistantMessage) and message.tool_calls:
            open_calls = {call.id for call in message.tool_calls}
            if len(open_calls) < len(message.tool_calls):
                raise InvalidRequest("Two calls have the same id.", param=f"messages.{number}.tool_calls")
    _require_none_open(open_calls, len(messages) - 1)


def _require_none_open(open_calls: set[str], number: int) -> None:
    if open_calls:
        raise InvalidRequest(
            f"{len(open_calls)} of the assistant's tool_calls have no tool message that answers them.",
            param=f"messages.{number}",
        )
