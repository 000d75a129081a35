"""Types of the answers of OpenAI's API, whole and as events.

The code that writes answers is checked against them, and the OpenAPI document is generated from them.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

_closed = with_config(ConfigDict(extra="forbid"))

Finish: TypeAlias = Literal["stop", "length", "tool_calls", "abort"]


@_closed
class CachedTokens(TypedDict):
    cached_tokens: int


@_closed
class CompletionTokens(TypedDict):
    reasoning_tokens: int
    """Tokens up to and including `</think>`."""
    accepted_prediction_tokens: int
    """Of the request's `prediction`: drafted, and right."""
    rejected_prediction_tokens: int
    """Of the request's `prediction`: drafted, and wrong."""


@_closed
class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: CompletionTokens


@_closed
class Span(TypedDict):
    begin_s: float
    end_s: float
    first_token: int
    num_tokens: int
    bytes: int


@_closed
class AnswerMove(TypedDict):
    at_s: float
    worker: str
    reason: str


@_closed
class Preemption(TypedDict):
    at_s: float
    waited_s: float
    worker: str
    reason: str


@_closed
class Timings(TypedDict):
    """Breakdown of the time to the first tokens; docs/architecture.md explains the stages."""

    queue_s: float
    prefill_s: float
    reserve_s: float
    transfer_s: float
    first_decode_s: float
    ttft_s: float
    e2e_s: float
    chunks: list[Span]
    pushes: list[Span]
    prefill_worker: str
    decode_worker: str
    placement: str
    """decode_worker computed the prompt from this token on; 0: it computed none of it, or all."""
    moves: list[AnswerMove]
    """Of the running answer to other workers."""
    preemptions: list[Preemption]
    """Times at which a worker freed the request's pages."""
    waited: dict[str, float]
    promoted: dict[str, int]
    """Seconds of queue_s by reason: budget, pages, slots, policy, transfer."""
    drafted_tokens: int
    """Verified by steps beside the tokens of the answer."""
    accepted_tokens: int
    """Of those, the ones that were right."""


@_closed
class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    """None: of the first token of a prompt (`echo`), which nothing precedes."""
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


@_closed
class PromptToken(TypedDict):
    logprob: float
    rank: int
    """1: the most likely."""
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[str, PromptToken] | None]
"""For each prompt token, by token id: the token itself and the most likely ones. None: of the first token."""


@_closed
class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | None
    """What the answer stopped at."""
    prompt_logprobs: NotRequired[PromptLogprobs]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


@_closed
class Completion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: NotRequired[Timings]


@_closed
class ChatToken(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatPosition(ChatToken):
    top_logprobs: list[ChatToken]


@_closed
class ChatLogprobs(TypedDict):
    content: list[ChatPosition]
    refusal: None


@_closed
class CalledFunction(TypedDict):
    name: str
    arguments: str
    """JSON text."""


@_closed
class CallInAnswer(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


@_closed
class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallInAnswer]]


@_closed
class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | None
    """What the answer stopped at."""
    token_ids: NotRequired[list[int]]


@_closed
class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]
    timings: NotRequired[Timings]


@_closed
class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    """Unix time in seconds."""
    owned_by: str
    max_model_len: int


@_closed
class Models(TypedDict):
    object: Literal["list"]
    data: list[Model]


@_closed
class Status(TypedDict):
    status: str


@_closed
class Readiness(TypedDict):
    status: str
    models: dict[str, str]


@_closed
class Version(TypedDict):
    version: str


@_closed
class Tokenized(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]


@_closed
class Rendered(TypedDict):
    request_id: str
    model: str
    token_ids: list[int]
    """Of the prompt that the same request would be computed from."""


@_closed
class Detokenized(TypedDict):
    prompt: str


@_closed
class InputTokens(TypedDict):
    input_tokens: int


@_closed
class ReleasedSession(TypedDict):
    object: Literal["session"]
    key: str
    released: Literal[True]


@_closed
class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


@_closed
class Error(TypedDict):
    error: ErrorDetail


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
