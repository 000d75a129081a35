"""What clients of OpenAI's API may send: parsing, and nothing but parsing.

Types are checked here, values where they mean something (SamplingOptions, Generation). A parameter is
either honoured, or known to change nothing, or refused: an answer never ignores what was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from router.errors import InvalidRequest
from router.frontend.openai.messages import MessageBody, for_template
from router.processing.generation_request import Chat, GenerationRequest, Prompt
from router.processing.sampling_options import SamplingOptions

__all__ = ["NEUTRAL", "WITHOUT_EFFECT", "ChatCompletionBody", "CompletionBody", "GenerationBody", "parse"]

_DEFAULT_COMPLETION_TOKENS: Final = 16

WITHOUT_EFFECT: Final = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Bookkeeping of OpenAI's service; no answer depends on it."""

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Parameters of OpenAI's that Baton does not have, with the values that ask for nothing. Null is another."""

_STRICT: Final = ConfigDict(strict=True, allow_inf_nan=False, extra="allow", use_attribute_docstrings=True)


_Stop: TypeAlias = str | list[str] | None
_Prompt: TypeAlias = str | list[str] | list[int] | list[list[int]]


def _text_or_list_of_texts(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise PydanticCustomError("stop", "Input should be a string or a list of strings")
    return tuple(texts)


def _prompts(value: Any) -> list[Prompt]:
    """A text, token ids, or a list of either. Long lists are checked without a Python loop."""
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


def _asks_for_nothing(name: str, value: Any) -> bool:
    """Whether a parameter that Baton does not have was given a value that changes no answer."""
    return value is None or any(value == other and type(value) is type(other) for other in NEUTRAL[name])


class StreamOptions(BaseModel):
    model_config = _STRICT | ConfigDict(extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Padding against eavesdroppers, of OpenAI's own network; no effect."""


class GenerationBody(BaseModel):
    """What both endpoints have in common."""

    model_config = _STRICT

    model: str | None = None
    """Absent: the served model."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: Annotated[
        tuple[str, ...], BeforeValidator(_text_or_list_of_texts, json_schema_input_type=_Stop)
    ] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Not OpenAI's, but customary.
    min_tokens: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    """With --schedule-policy priority; else only 0."""
    ttft_deadline: Annotated[float | None, Field(gt=0)] = None
    """Seconds for the first token; with --schedule-policy deadline."""
    timeout: Annotated[float | None, Field(gt=0)] = None
    """Seconds for the whole request."""
    timings: bool | None = None
    """Return the TTFT waterfall."""

    @model_validator(mode="after")
    def _refuse_what_is_not_there(self) -> GenerationBody:
        for name, value in (self.model_extra or {}).items():
            if name not in WITHOUT_EFFECT and name not in NEUTRAL:
                raise _unknown(name[:100])
            if name in NEUTRAL and not _asks_for_nothing(name, value):
                raise _unsupported(name)
        return self

    @model_validator(mode="after")
    def _check_combinations(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only for stream: true.", param="stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def _options(self, **more: Any) -> SamplingOptions:
        """Absent and null both mean the default."""
        given = {
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "stop": self.stop,
            "stop_token_ids": None if self.stop_token_ids is None else tuple(self.stop_token_ids),
            "ignore_eos": self.ignore_eos,
        } | more
        return SamplingOptions(**{name: value for name, value in given.items() if value is not None})

    def _request(self, request_id: str, prompts: list[Prompt], options: SamplingOptions) -> GenerationRequest:
        n = 1 if self.n is None else self.n
        if self.timings and len(prompts) * n != 1:
            raise InvalidRequest("timings is only for one prompt and n = 1.", param="timings")
        return GenerationRequest(
            id=request_id,
            prompts=prompts,
            options=options,
            model=self.model or "",
            n=n,
            priority=self.priority or 0,
            ttft_deadline_s=self.ttft_deadline or 0.0,
            timeout_s=self.timeout or 0.0,
            timings=bool(self.timings),
        )


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Annotated[Any, BeforeValidator(_prompts, json_schema_input_type=_Prompt)]
    echo: bool | None = None
    logprobs: int | None = None

    def to_request(self, request_id: str) -> GenerationRequest:
        if self.echo and self.logprobs is not None:
            raise InvalidRequest("echo with logprobs is not supported.", param="echo")
        max_tokens = _DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        options = self._options(logprobs=self.logprobs, max_tokens=max_tokens)
        return self._request(request_id, self.prompt, options)


class ChatCompletionBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[MessageBody]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def to_request(self, request_id: str) -> GenerationRequest:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise InvalidRequest(
                "max_tokens and max_completion_tokens differ; they mean the same.", param="max_tokens"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs is only for logprobs: true.", param="top_logprobs")
        options = self._options(
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
        )
        chat = Chat(for_template(self.messages), self.chat_template_kwargs or {})
        return self._request(request_id, [chat], options)


_BodyT = TypeVar("_BodyT", bound=GenerationBody)


def parse(kind: type[_BodyT], body: bytes) -> _BodyT:
    """`body` as a `kind`. Raises InvalidRequest that names the parameter at fault."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False, include_context=False, include_input=False)
        raise _refusal(first) from None


def _refusal(error: ErrorDetails) -> InvalidRequest:
    message = error["msg"]
    if error["type"] == "json_invalid":
        return InvalidRequest(f"The body cannot be read. {message}.", code="invalid_json")
    param = _param_at(error)[:100]
    match error["type"]:
        case "missing":
            return InvalidRequest(
                f"The parameter {param} is missing.", param=param, code="missing_required_parameter"
            )
        case "extra_forbidden":
            return _unknown(param)
        case "none_required":
            return _unsupported(param)
    if not param:
        return InvalidRequest(f"The body is wrong: {message}.")
    return InvalidRequest(f"The parameter {param} is wrong: {message}.", param=param, code="invalid_value")


def _param_at(error: ErrorDetails) -> str:
    """Where in the body, as clients see it: pydantic puts a message's role into the path."""
    place = error["loc"]
    if place[:1] == ("messages",):
        place = place[:2] + place[3:]
        if error["type"].startswith("union_tag"):
            place += ("role",)
        elif error["type"] == "missing_content":
            place += ("content",)
    return ".".join(map(str, place))


def _unknown(param: str) -> InvalidRequest:
    return InvalidRequest(f"Unrecognized request argument: {param}.", param=param, code="unknown_parameter")


def _unsupported(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"{param} is not supported by this server.", param=param, code="unsupported_parameter"
    )
