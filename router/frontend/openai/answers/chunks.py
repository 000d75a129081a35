"""Types of the events of OpenAI's streamed completions; see schemas.py."""

from __future__ import annotations

from typing import Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from router.frontend.openai.answers.schemas import ChatLogprobs, CompletionLogprobs, Finish, Timings, Usage

_closed = with_config(ConfigDict(extra="forbid"))


@_closed
class CompletionChunkChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    """In the first event of a choice."""


@_closed
class CompletionChunk(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    """Empty in the last event, which has the usage."""
    usage: NotRequired[Usage | None]
    timings: NotRequired[Timings]


@_closed
class CalledFunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


@_closed
class CallDelta(TypedDict):
    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunctionDelta


@_closed
class MessageDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallDelta]]


@_closed
class ChatChunkChoice(TypedDict):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


@_closed
class ChatCompletionChunk(TypedDict):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    """Empty in the last event, which has the usage."""
    prompt_token_ids: NotRequired[list[int]]
    """In the first events."""
    usage: NotRequired[Usage | None]
    timings: NotRequired[Timings]
