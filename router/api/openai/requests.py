"""Requests of OpenAI's completions and chat completions: every field, with its bounds.

Bounds are in the types (router/api/generation/params/bounds.py). Every parameter is honoured, listed as one
without effect, or refused; none is ignored silently. docs/api.md and the OpenAPI document are generated from
these models.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from router.api.cache_hints import OpenAICacheHints
from router.api.fields import Refused, WithoutEffect
from router.api.generation.generation_request import Chat, GenerationRequest, Prompt, TokensWithImages
from router.api.generation.params.bounds import (
    Completions,
    LogitBiases,
    Logprobs,
    LogprobTokenIds,
    MaxTokens,
    ModelName,
    Seed,
    Served,
    StopStrings,
    StopTokenIds,
    TokenId,
)
from router.api.generation.params.sampled_body import SampledBody
from router.api.generation.params.sampling_options import OPTIONS
from router.api.generation.params.validation import RequestModel
from router.api.media.marks import ImageSource
from router.api.openai.foreign_fields import (
    ForeignChatFields,
    ForeignCompletionFields,
    ForeignFields,
)
from router.api.openai.images import ImageUrl
from router.api.openai.messages import MessageBody, for_template
from router.api.openai.prompting import PredictionBody, ReasoningEffort, prompt_end, with_effort
from router.api.openai.structured_output import ConstrainedBody
from router.api.openai.tools import MAX_TOOLS, ToolBody, ToolChoiceBody, tool_use
from router.api.scheduled_body import ScheduledBody
from router.errors import InvalidRequest

_DEFAULT_COMPLETION_TOKENS: Final = 16

_Text: TypeAlias = Annotated[str, Field(min_length=1)]
_Stop: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024)] | StopStrings | None
TextsOrIds: TypeAlias = (
    _Text
    | Annotated[list[_Text], Field(min_length=1)]
    | Annotated[list[TokenId], Field(min_length=1)]
    | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1)]
)

Bookkeeping: TypeAlias = Annotated[Any, WithoutEffect("bookkeeping of OpenAI's service")]


def several(value: Any) -> Any:
    """One stop string, or a list of them."""
    if isinstance(value, str):
        return (value,)
    if value is not None and not isinstance(value, list):
        raise PydanticCustomError("stop", "Input should be a string or a list of strings")
    return value if value is None else tuple(value)


def texts_or_ids(value: Any) -> list[Prompt]:
    """A text, token ids, or a list of either. Checks long lists without a Python loop."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        kinds = set(map(type, value))
        if kinds == {str}:
            return value
        if kinds == {int}:
            return [value]
        if kinds == {list} and all(set(map(type, ids)) <= {int} for ids in value):
            return value
    raise PydanticCustomError(
        "prompt", "Input should be a string, a list of strings, a list of token ids, or a list of such lists"
    )


class StreamedUsage(Enum):
    """Events of a stream that have the usage so far."""

    NONE = auto()
    LAST_EVENT = auto()
    EVERY_EVENT = auto()


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    """Send the usage as the last event."""
    continuous_usage_stats: bool | None = None
    """vLLM's: with `include_usage`, send the usage so far with every event."""
    include_obfuscation: Annotated[Any, WithoutEffect("no padding is sent")] = None


class ScoredBody(RequestModel):
    prompt_logprobs: Logprobs | None = None
    """Report the log-probability of each prompt token, and this many alternatives; not with `stream`."""

    def check_streamed(self, param: str = "") -> None:
        """Raise InvalidRequest for what no stream reports. `param`: path of this body."""
        if self.prompt_logprobs is not None:
            raise InvalidRequest(
                "prompt_logprobs is not for stream: true; echo with logprobs streams them.",
                param=f"{param}prompt_logprobs",
                code="unsupported_parameter",
            )

    @staticmethod
    def scored(alternatives: int) -> dict[str, int]:
        """Sampling options that report the log-probabilities of a prompt."""
        return {"prompt_logprobs": alternatives}


class GenerationBody(
    ScoredBody, ConstrainedBody, ScheduledBody, SampledBody, OpenAICacheHints, ForeignFields
):
    """Fields of both endpoints."""

    model: ModelName | None = None
    """Absent: the served model."""
    max_tokens: MaxTokens | None = None
    """Longest answer; 0: only the prompt is computed."""
    n: Completions | None = None
    """Completions per prompt."""
    seed: Seed | None = None
    """The same seed gives the same answer, on any worker."""
    stop: Annotated[StopStrings | None, BeforeValidator(several, json_schema_input_type=_Stop)] = None
    """Not part of the answer."""
    logit_bias: LogitBiases | None = None
    """Biases by token id."""
    stream_options: StreamOptions | None = None
    """With `stream` only."""

    # Customary extensions of OpenAI's API.
    stop_token_ids: StopTokenIds | None = None
    """Tokens that end the answer."""
    skip_special_tokens: bool | None = None
    """vLLM's. False: special tokens are part of the text."""
    best_of: int | None = None
    """The same as `n`; to get the best, rank the completions by their logprobs."""
    lora_path: Annotated[str, Field(min_length=1)] | None = None
    """SGLang's: name of the adapter, unless `model` has one."""
    logprob_token_ids: LogprobTokenIds | None = None
    """vLLM's: report the log-probabilities of these tokens, in place of the most likely ones."""
    return_tokens_as_token_ids: bool | None = None
    """vLLM's: the name of a token in log-probabilities is `token_id:` and its id."""
    return_token_ids: bool | None = None
    """vLLM's: report the token ids of prompts and answers."""
    return_weight_versions: bool | None = None
    """vLLM's: report which weights have computed which tokens; see weights.md."""
    timings: bool | None = None
    """Return the TTFT waterfall; for one completion."""
    prediction: PredictionBody | None = None
    """OpenAI's Predicted Outputs: the answer as expected, which makes a similar one faster."""
    speculative: bool | None = None
    """False: draft no tokens for this request, whatever --speculative says."""

    metadata: Bookkeeping = None
    safety_identifier: Bookkeeping = None
    service_tier: Bookkeeping = None
    store: Annotated[Any, WithoutEffect("nothing is stored")] = None
    user: Bookkeeping = None
    prompt_cache_options: Annotated[Any, WithoutEffect("prefixes are cached without options")] = None

    @model_validator(mode="after")
    def _check_combinations(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only for stream: true.", param="stream_options")
        if self.stream:
            self.check_streamed()
        if self.best_of not in (None, self.n or 1):
            raise InvalidRequest(
                "best_of is only supported if it is n: rank the completions by their logprobs.",
                param="best_of",
                code="unsupported_parameter",
            )
        return self

    @property
    def streamed_usage(self) -> StreamedUsage:
        options = self.stream_options
        if options is None or not options.include_usage:
            return StreamedUsage.NONE
        return StreamedUsage.EVERY_EVENT if options.continuous_usage_stats else StreamedUsage.LAST_EVENT

    def _to_request(self, request_id: str, prompts: list[Prompt], **options: Any) -> GenerationRequest:
        """`options`: those that are not fields of all bodies."""
        n = 1 if self.n is None else self.n
        if self.timings and len(prompts) * n != 1:
            raise InvalidRequest("timings is only for one prompt and n = 1.", param="timings")
        if self.logprob_token_ids and options["logprobs"] is None:
            options["logprobs"] = 0
        request = self._request(
            request_id,
            prompts,
            {name: getattr(self, name) for name in _SAME} | options,
            n=n,
            timings=bool(self.timings),
            prediction="" if self.prediction is None else self.prediction.text,
            speculative=self.speculative is not False,
        )
        request.work.weight_versions = bool(self.return_weight_versions)
        return request


_SAME: Final = (OPTIONS & GenerationBody.model_fields.keys()) | {"constraint"}
"""Options that are fields of all bodies, under the same names."""


class CompletionBody(GenerationBody, ForeignCompletionFields):
    """POST /v1/completions."""

    prompt: Annotated[Any, BeforeValidator(texts_or_ids, json_schema_input_type=TextsOrIds)]
    """Text, token ids, or a list of either."""
    images: Annotated[list[ImageUrl], Field(min_length=1)] | None = None
    """Images of a prompt of token ids that has places for them, such as `prompt_token_ids` of a chat."""
    echo: bool | None = None
    """Begin the answer with the prompt, and `logprobs` with those of its tokens."""
    logprobs: Logprobs | None = None
    """Number of alternatives reported per token."""

    suffix: Annotated[Any, Refused("the models served here do not infill", ("",))] = None

    def to_request(self, request_id: str) -> GenerationRequest:
        scored = self.logprobs if self.echo and self.prompt_logprobs is None else self.prompt_logprobs
        return self._to_request(
            request_id,
            self.prompt if self.images is None else [self._with_images(self.images)],
            logprobs=self.logprobs,
            prompt_logprobs=scored,
            max_tokens=_DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens,
            cut_max_tokens=self.max_tokens is None,
        )

    def _with_images(self, images: Sequence[ImageUrl]) -> TokensWithImages:
        """Raises InvalidRequest."""
        ids, *others = self.prompt
        if others or isinstance(ids, str):
            raise InvalidRequest("images needs a prompt of token ids, and one alone.", param="images")
        return TokensWithImages(ids, [ImageSource(image.url, image.detail or "auto") for image in images])


class ChatCompletionBody(GenerationBody, ForeignChatFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[MessageBody], Field(min_length=1), Served("max_new_tokens")]
    """Text and images; tool calls and their results included."""
    max_completion_tokens: MaxTokens | None = None
    """The same as `max_tokens`."""
    logprobs: bool | None = None
    """Report the log-probability of each token."""
    top_logprobs: Logprobs | None = None
    """Number of alternatives reported per token, with `logprobs`."""
    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)] | None = None
    """Functions that the model may call."""
    tool_choice: ToolChoiceBody | None = None
    """`auto`, `none`, `required`, or a function by name."""
    parallel_tool_calls: bool | None = None
    """False: at most one call."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the chat template, such as Qwen3's `enable_thinking`."""
    reasoning_effort: ReasoningEffort | None = None
    """A variable of the chat template; templates without it ignore it."""
    add_generation_prompt: bool | None = None
    """vLLM's. False: the prompt ends with the last message, not with the start of an answer."""
    continue_final_message: bool | None = None
    """vLLM's: the answer continues the last message, an assistant's."""

    audio: Annotated[Any, Refused("answers are text")] = None
    function_call: Annotated[Any, Refused("replaced by tool_choice", ("none", "auto"))] = None
    functions: Annotated[Any, Refused("replaced by tools", ([],))] = None
    modalities: Annotated[Any, Refused("answers are text", (["text"],))] = None
    moderation: Annotated[Any, Refused("no moderation model")] = None
    verbosity: Annotated[Any, WithoutEffect("specific to OpenAI's models")] = None
    web_search_options: Annotated[Any, Refused("no web search")] = None

    def to_request(self, request_id: str) -> GenerationRequest:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise InvalidRequest(
                "max_tokens and max_completion_tokens differ; they mean the same.", param="max_tokens"
            )
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs is only for logprobs: true.", param="top_logprobs")
        end = prompt_end(self.add_generation_prompt, self.continue_final_message)
        chat = Chat(
            for_template(self.messages),
            with_effort(self.reasoning_effort) | (self.chat_template_kwargs or {}),
            tool_use(self.tools or (), self.tool_choice, self.parallel_tool_calls is not False),
            end,
        )
        return self._to_request(
            request_id,
            [chat],
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
        )
