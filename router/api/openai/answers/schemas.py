"""Types of the answers of OpenAI's API, whole and as events.

The code that writes answers is checked against them, and the OpenAPI document is generated from them. Their
names are those of the document's components, also where the product has another class of the same name.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from router.api.generation.audit.answer import Extras
from router.api.openai.answers.timings import Timings

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


class _Answer(Closed):
    id: str
    created: int
    model: str
    timings: NotRequired[Timings]


class WeightVersion(Closed):
    version: str
    start: int
    """Position in the answer of the first token that these weights have computed."""
    end: int
    """Position after the last one."""


class _Choice(Closed, Extras):
    index: int
    finish_reason: Finish
    stop_reason: str | int | None
    """What the answer stopped at."""
    token_ids: NotRequired[list[int]]
    weight_versions: NotRequired[list[WeightVersion]]


class _ChunkChoice(Closed, Extras):
    index: int
    finish_reason: Finish | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    weight_versions: NotRequired[list[WeightVersion]]
    """In the last event of a choice."""


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


class ScoredPrompt(Closed):
    prompt_logprobs: NotRequired[PromptLogprobs]


class CompletionChoice(_Choice, ScoredPrompt):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: NotRequired[list[int]]


class Completion(_Answer):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


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


class ChatChoice(_Choice):
    message: ChatMessage
    logprobs: ChatLogprobs | None


class ChatCompletion(_Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]


class Model(Closed):
    id: str
    object: Literal["model"]
    created: int
    """Unix time in seconds."""
    owned_by: str
    max_model_len: int
    model_impl: str
    """Whose modules run it: baton or transformers."""
    no_images: str
    """Why images are refused; empty: they are taken."""
    default_sampling_params: dict[str, Any]
    """Defaults of sampling parameters that differ from OpenAI's."""
    root: NotRequired[str]
    """Folder of an adapter."""
    parent: NotRequired[str]
    """The model of an adapter."""


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


class CompletionChunkChoice(_ChunkChoice):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: NotRequired[list[int]]
    """In the first event of a choice."""


class CompletionChunk(_Answer):
    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    """Empty in the last event, which has the usage."""
    usage: NotRequired[Usage | None]


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


class ChatChunkChoice(_ChunkChoice):
    delta: MessageDelta
    logprobs: ChatLogprobs | None


class ChatCompletionChunk(_Answer):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    """Empty in the last event, which has the usage."""
    prompt_token_ids: NotRequired[list[int]]
    """In the first events."""
    usage: NotRequired[Usage | None]
