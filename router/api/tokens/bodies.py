"""Requests in tokens: vLLM's POST /inference/v1/generate and SGLang's POST /generate, every field with its
bounds."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from router.api.fields import Refused, WithoutEffect
from router.api.generation.generation_request import GenerationRequest, Prompt
from router.api.generation.params.bounds import (
    Completions,
    LogitBiases,
    Logprobs,
    LogprobTokenIds,
    MaxTokens,
    ModelName,
    Seed,
    StopStrings,
    StopTokenIds,
    TokenId,
)
from router.api.generation.params.sampled_body import SampledBody
from router.api.generation.params.sampling_options import OPTIONS
from router.api.openai.foreign_fields import HANDOFF, NO_HOOKS
from router.api.openai.requests import ScoredBody, StreamOptions, several, texts_or_ids
from router.api.openai.structured_output import ConstrainedBody
from router.api.scheduled_body import ScheduledBody
from router.errors import InvalidRequest

_VLLM_MAX_TOKENS: Final = 16
_SGLANG_MAX_TOKENS: Final = 128

_Stop: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024)] | StopStrings | None
RequestId: TypeAlias = Annotated[str, Field(pattern=r"^[!-~]{1,128}$")]
"""Fit for logs."""
_Ids: TypeAlias = Annotated[list[TokenId], Field(min_length=1)]

_TOKENS_STAY: Final = "the tokens up to and including those of a stop string are part of the answer"
_TEXT_ONLY: Final = "text and tokens only; send images to /v1/chat/completions"


class _Sampling(ConstrainedBody, SampledBody):
    """Sampling parameters of both servers."""

    n: Completions | None = None
    """Completions per prompt."""
    stop: Annotated[StopStrings | None, BeforeValidator(several, json_schema_input_type=_Stop)] = None
    stop_token_ids: StopTokenIds | None = None
    """Tokens that end the answer."""
    logit_bias: LogitBiases | None = None
    """Biases by token id."""
    skip_special_tokens: bool | None = None
    """False: special tokens are part of the text."""

    spaces_between_special_tokens: Annotated[Any, WithoutEffect("text is decoded as the tokenizer does")] = (
        None
    )
    stop_regex: Annotated[Any, Refused("use stop, or `regex` for the whole output", ([], ""))] = None

    @property
    def given(self) -> dict[str, Any]:
        """Sampling options by name."""
        return {name: getattr(self, name) for name in (OPTIONS & type(self).model_fields.keys())} | {
            "constraint": self.constraint
        }


class SamplingParamsBody(ScoredBody, _Sampling):
    """vLLM's SamplingParams."""

    max_tokens: MaxTokens | None = None
    """16 unless given."""
    seed: Seed | None = None
    """The same seed gives the same answer, on any worker."""
    logprobs: Logprobs | None = None
    """Number of alternatives reported per token."""
    logprob_token_ids: LogprobTokenIds | None = None
    """Report the log-probabilities of these tokens, in place of the most likely ones."""

    detokenize: Annotated[Any, WithoutEffect("answers are tokens")] = None
    flat_logprobs: Annotated[Any, WithoutEffect("the layout of vLLM's own objects")] = None
    include_stop_str_in_output: Annotated[Any, WithoutEffect(_TOKENS_STAY)] = None
    output_kind: Annotated[Any, WithoutEffect("`stream` decides")] = None
    allowed_token_ids: Annotated[Any, Refused("use structured_outputs, or logit_bias of other tokens")] = None
    bad_words: Annotated[Any, Refused("use logit_bias: -100 for their token ids", ([],))] = None
    extra_args: Annotated[Any, Refused(NO_HOOKS, ({},))] = None


class TokensBody(ScheduledBody):
    """vLLM's POST /inference/v1/generate."""

    token_ids: _Ids
    """The prompt."""
    sampling_params: SamplingParamsBody = Field(default_factory=SamplingParamsBody)
    model: ModelName | None = None
    """Absent: the served model."""
    request_id: RequestId | None = None
    """For /abort_requests, and of the answer."""
    return_routed_experts: bool | None = None
    """Report the experts that computed each token; true unless given, with --enable-return-routed-experts."""
    lora_path: Annotated[str, Field(min_length=1)] | None = None
    """Name of the adapter, unless `model` has one."""
    stream_options: StreamOptions | None = None
    """With `stream` only."""

    features: Annotated[Any, Refused(_TEXT_ONLY)] = None
    kv_transfer_params: Annotated[Any, Refused(HANDOFF, ({},))] = None
    output_mode: Annotated[
        Any, Refused("answers are token ids; POST /detokenize has the text", ("tokens",))
    ] = None

    @model_validator(mode="after")
    def _check_combinations(self) -> TokensBody:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only for stream: true.", param="stream_options")
        if self.stream:
            self.sampling_params.check_streamed("sampling_params.")
        return self

    def to_request(self, request_id: str) -> GenerationRequest:
        given = self.sampling_params.given
        if given["max_tokens"] is None:
            given |= {"max_tokens": _VLLM_MAX_TOKENS, "cut_max_tokens": True}
        if given["logprob_token_ids"] and given["logprobs"] is None:
            given["logprobs"] = 0
        routed = self.return_routed_experts
        request = self._request(
            self.request_id or request_id,
            [self.token_ids],
            given,
            n=self.sampling_params.n or 1,
            routed_by_default=routed is None,
        )
        request.work.routed_experts = bool(routed)
        return request


class GenerateParamsBody(_Sampling):
    """SGLang's sampling parameters."""

    max_new_tokens: MaxTokens | None = None
    """128 unless given."""
    min_new_tokens: Annotated[int, Field(ge=0)] | None = None
    """The same as `min_tokens`."""
    sampling_seed: Seed | None = None
    """The same seed gives the same answer, on any worker."""

    stream_interval: Annotated[Any, WithoutEffect("tokens are sent when their step ends")] = None
    custom_params: Annotated[Any, Refused(NO_HOOKS, ({},))] = None
    no_stop_trim: Annotated[Any, Refused("stop strings are not part of `text`; use output_ids", (False,))] = (
        None
    )
    structural_tag: Annotated[Any, Refused("use json_schema, regex or ebnf")] = None

    @property
    def given(self) -> dict[str, Any]:
        asked = super().given
        if self.max_new_tokens is None:
            asked |= {"max_tokens": _SGLANG_MAX_TOKENS, "cut_max_tokens": True}
        else:
            asked["max_tokens"] = self.max_new_tokens
        if self.min_new_tokens is not None:
            asked["min_tokens"] = self.min_new_tokens
        return asked | {"seed": self.sampling_seed}


def _prompts(value: Any) -> list[Prompt] | None:
    return None if value is None else texts_or_ids(value)


class GenerateBody(ScheduledBody):
    """SGLang's POST /generate. With several prompts, or `n` above 1, the answer is a list."""

    text: Annotated[Any, BeforeValidator(_prompts, json_schema_input_type=str | list[str] | None)] = None
    """The prompt, or a list of prompts."""
    input_ids: Annotated[Any, BeforeValidator(_prompts, json_schema_input_type=_Ids | list[_Ids] | None)] = (
        None
    )
    """The prompt as token ids, in place of `text`."""
    sampling_params: GenerateParamsBody = Field(default_factory=GenerateParamsBody)
    model: ModelName | None = None
    """Absent: the served model."""
    rid: RequestId | None = None
    """For /abort_request, and of the answer."""
    return_logprob: bool = False
    """Report the log-probability of each token."""
    logprob_start_len: Annotated[int, Field(ge=-1)] = -1
    """With `return_logprob`: also those of the prompt's tokens after this position; -1: of none."""
    top_logprobs_num: Logprobs = 0
    """Number of alternatives reported per token."""
    token_ids_logprob: LogprobTokenIds | None = None
    """Report the log-probabilities of these tokens."""
    return_text_in_logprobs: bool = False
    """Report the text of each token."""
    return_routed_experts: bool = False
    """Report the experts that computed each token; with --enable-return-routed-experts."""
    routed_experts_start_len: Annotated[int, Field(ge=0)] = 0
    """Leave out those of this many tokens at the beginning."""
    lora_path: Annotated[str, Field(min_length=1)] | None = None
    """Name of the adapter."""

    log_metrics: Annotated[Any, WithoutEffect("every request is counted")] = None
    no_logs: Annotated[Any, WithoutEffect("requests are logged by --log-level")] = None
    bootstrap_host: Annotated[Any, Refused(HANDOFF)] = None
    bootstrap_port: Annotated[Any, Refused(HANDOFF)] = None
    bootstrap_room: Annotated[Any, Refused(HANDOFF)] = None
    custom_logit_processor: Annotated[Any, Refused(NO_HOOKS)] = None
    data_parallel_rank: Annotated[Any, Refused("the router chooses the worker; see --routing")] = None
    image_data: Annotated[Any, Refused(_TEXT_ONLY, ([],))] = None
    input_embeds: Annotated[Any, Refused("prompts are texts or token ids")] = None
    return_hidden_states: Annotated[Any, Refused("hidden states stay on the workers", (False,))] = None
    session_params: Annotated[Any, Refused("use prompt_cache_key to keep the KV of a session", ({},))] = None

    @model_validator(mode="after")
    def _check_combinations(self) -> GenerateBody:
        if (self.text is None) == (self.input_ids is None):
            raise InvalidRequest("Either text or input_ids is needed.", param="text")
        if any(isinstance(prompt, str) for prompt in self.input_ids or ()):
            raise InvalidRequest("input_ids must be token ids.", param="input_ids")
        if not all(isinstance(prompt, str) for prompt in self.text or ()):
            raise InvalidRequest("text must be a string, or a list of strings.", param="text")
        if self.stream and self.is_list:
            raise InvalidRequest("stream is for one prompt and n = 1.", param="stream")
        if self.top_logprobs_num and self.token_ids_logprob:
            raise InvalidRequest(
                "token_ids_logprob are reported in place of the most likely tokens.",
                param="token_ids_logprob",
            )
        return self

    @property
    def prompts(self) -> list[Prompt]:
        return list(self.text or self.input_ids)

    @property
    def is_list(self) -> bool:
        return len(self.prompts) * (self.sampling_params.n or 1) > 1

    @property
    def scores_prompt(self) -> bool:
        return self.return_logprob and self.logprob_start_len >= 0

    def to_request(self, request_id: str) -> GenerationRequest:
        asked: dict[str, Any] = {
            **self.sampling_params.given,
            "logprobs": self.top_logprobs_num if self.return_logprob else None,
            "logprob_token_ids": self.token_ids_logprob if self.return_logprob else None,
        }
        if self.scores_prompt:
            asked |= ScoredBody.scored(self.top_logprobs_num)
        n = self.sampling_params.n or 1
        request = self._request(self.rid or request_id, self.prompts, asked, n=n)
        request.work.routed_experts = self.return_routed_experts
        return request
