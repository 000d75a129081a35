"""Types of the answers and events of the Responses API; see router/api/openai/answers/schemas.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from router.api.blocks import BlockStatus
from router.api.generation.audit.answer import Extras
from router.api.openai.answers.schemas import Closed


class OutputText(Closed):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(Closed):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: BlockStatus
    content: list[OutputText]


class OutputCall(Closed):
    id: str
    type: Literal["function_call"]
    status: BlockStatus
    call_id: str
    name: str
    arguments: str


class OutputReasoningText(Closed):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(Closed):
    id: str
    type: Literal["reasoning"]
    status: BlockStatus
    summary: list[Any]
    content: list[OutputReasoningText]


Item: TypeAlias = OutputMessage | OutputCall | OutputReasoning


class IncompleteDetails(Closed):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(Closed):
    cached_tokens: int


class OutputTokensDetails(Closed):
    reasoning_tokens: int
    """Tokens up to and including `</think>`."""


class ResponseUsage(Closed):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Closed):
    code: str
    message: str


class Response(Closed, Extras):
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


class _Event(Closed):
    sequence_number: int


class _ItemEvent(_Event):
    output_index: int
    item_id: str


class _ContentEvent(_ItemEvent):
    content_index: int


class ResponseStateEvent(_Event):
    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: Response


class OutputItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: Item


class ContentPartEvent(_ContentEvent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText | OutputReasoningText


class TextDeltaEvent(_ContentEvent):
    type: Literal["response.output_text.delta", "response.reasoning_text.delta"]
    delta: str
    logprobs: NotRequired[list[Any]]


class TextDoneEvent(_ContentEvent):
    type: Literal["response.output_text.done", "response.reasoning_text.done"]
    text: str
    logprobs: NotRequired[list[Any]]


class ArgumentsDeltaEvent(_ItemEvent):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDoneEvent(_ItemEvent):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


ResponseEvent: TypeAlias = (
    ResponseStateEvent
    | OutputItemEvent
    | ContentPartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
)
