"""Types of the answers of OpenAI's API, whole and as events.

The code that writes answers is checked against them, and the OpenAPI document is generated from them.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

Finish: TypeAlias = Literal["stop", "length", "tool_calls", "abort"]


@with_config(ConfigDict(extra="forbid"))
class Closed(TypedDict):
    """Base of objects that have no fields but the declared ones; pydantic inherits this."""


class CachedTokens(Closed):
    cached_tokens: int


class CompletionTokens(Closed):
    reasoning_tokens: int
    """Tokens up to and including `</think>`."""
    accepted_prediction_tokens: int
    """Tokens of the request's `prediction` that were drafted and accepted."""
    rejected_prediction_tokens: int
    """Tokens of the request's `prediction` that were drafted and rejected."""


class Usage(Closed):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: CompletionTokens


class Span(Closed):
    begin_s: float
    end_s: float
    first_token: int
    num_tokens: int
    bytes: int


class AnswerMove(Closed):
    at_s: float
    worker: str
    reason: str


class Preemption(Closed):
    at_s: float
    waited_s: float
    worker: str
    reason: str


class AnswerPause(Closed):
    at_s: float
    seconds: float
    worker: str
    cause: str
    parts: dict[str, float]
    """Seconds by cause, in the slow step that made the pause."""


class Timings(Closed):
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
    """Why these workers were chosen."""
    moves: list[AnswerMove]
    """Migrations of the running answer to other workers."""
    preemptions: list[Preemption]
    """Times at which a worker freed the request's pages."""
    pauses: list[AnswerPause]
    """Long gaps between tokens."""
    waited: dict[str, float]
    """Seconds of queue_s by reason: budget, pages, slots, policy, transfer."""
    promoted: dict[str, int]
    """Cached prompt tokens whose KV came from a tier: host, disk."""
    drafted_tokens: int
    """Verified by steps beside the tokens of the answer."""
    accepted_tokens: int
    """Drafted tokens that were accepted."""


class CompletionLogprobs(Closed):
    tokens: list[str]
    token_logprobs: list[float | None]
    """None: of the first token of a prompt (`echo`), which nothing precedes."""
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptToken(Closed):
    logprob: float
    rank: int
    """1: the most likely."""
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[str, PromptToken] | None]
"""For each prompt token, by token id: the token itself and the most likely ones. None: of the first token."""


class CompletionChoice(Closed):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | None
    """What the answer stopped at."""
    prompt_logprobs: NotRequired[PromptLogprobs]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class Completion(Closed):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: NotRequired[Timings]


class ChatToken(Closed):
    token: str
    logprob: float
    bytes: list[int]


class ChatPosition(ChatToken):
    top_logprobs: list[ChatToken]


class ChatLogprobs(Closed):
    content: list[ChatPosition]
    refusal: None


class CalledFunction(Closed):
    name: str
    arguments: str
    """JSON text."""


class CallInAnswer(Closed):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Closed):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallInAnswer]]


class ChatChoice(Closed):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | None
    """What the answer stopped at."""
    token_ids: NotRequired[list[int]]


class ChatCompletion(Closed):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]
    timings: NotRequired[Timings]


class Model(Closed):
    id: str
    object: Literal["model"]
    created: int
    """Unix time in seconds."""
    owned_by: str
    max_model_len: int
    default_sampling_params: dict[str, Any]
    """Defaults of sampling parameters that differ from OpenAI's."""


class Models(Closed):
    object: Literal["list"]
    data: list[Model]


class Tokenized(Closed):
    count: int
    max_model_len: int
    tokens: list[int]


class Rendered(Closed):
    request_id: str
    model: str
    token_ids: list[int]
    """Tokens of the prompt that the same request would be computed from."""


class Detokenized(Closed):
    prompt: str


class ErrorDetail(Closed):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Closed):
    error: ErrorDetail


class CompletionChunkChoice(Closed):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    """In the first event of a choice."""


class CompletionChunk(Closed):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    """Empty in the last event, which has the usage."""
    usage: NotRequired[Usage | None]
    timings: NotRequired[Timings]


class CalledFunctionDelta(Closed):
    name: NotRequired[str]
    arguments: str


class CallDelta(Closed):
    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunctionDelta


class MessageDelta(Closed):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallDelta]]


class ChatChunkChoice(Closed):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class ChatCompletionChunk(Closed):
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
