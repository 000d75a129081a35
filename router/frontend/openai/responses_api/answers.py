"""Answers of the Responses API as types; see router/frontend/openai/answers/schemas.py."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

_closed = with_config(ConfigDict(extra="forbid"))

_ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


@_closed
class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


@_closed
class OutputMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: _ItemStatus
    content: list[OutputText]


@_closed
class OutputCall(TypedDict):
    id: str
    type: Literal["function_call"]
    status: _ItemStatus
    call_id: str
    name: str
    arguments: str


@_closed
class OutputReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


@_closed
class OutputReasoning(TypedDict):
    id: str
    type: Literal["reasoning"]
    status: _ItemStatus
    summary: list[Any]
    content: list[OutputReasoningText]


Item: TypeAlias = OutputMessage | OutputCall | OutputReasoning


@_closed
class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


@_closed
class InputTokensDetails(TypedDict):
    cached_tokens: int


@_closed
class OutputTokensDetails(TypedDict):
    reasoning_tokens: int
    """Tokens up to and including `</think>`."""


@_closed
class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


@_closed
class ResponseError(TypedDict):
    code: str
    message: str


@_closed
class Response(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    """`tools_left_out`: types of tools that are no functions, which the model is not told of."""
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, str | None]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: None
