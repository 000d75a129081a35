"""Sampling options of requests. The bounds are in the types (bounds.py), the defaults in
sampling_defaults.py."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ValidationError, create_model

from engine.core.sampling_params import MinP, RepetitionPenalty, SharedParams, Temperature, TopK, TopP
from router.api.generation.params.bounds import (
    LogitBiases,
    Logprobs,
    LogprobTokenIds,
    MaxTokens,
    Seed,
    ServedBounds,
    StopStrings,
    StopTokenIds,
)
from router.api.generation.params.constraint import Constraint, grammar_to_proto
from router.api.generation.params.validation import STRICT, refusal_of
from router.api.generation.sampling_defaults import OPENAI_DEFAULTS, SamplingDefaults
from router.errors import InvalidRequest
from rpc.baton.v1 import sampling_pb2

_UINT64: Final = (1 << 64) - 1
_COLDEST: Final = 1e-4
"""Lower temperatures are treated as greedy: they always draw the most likely token, and float32 could
overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions(SharedParams):
    """OpenAI's parameters and the customary extensions, as a client gave them.

    None stands for the model's default (`SamplingDefaults`).
    """

    max_tokens: MaxTokens | None = None
    """None: the model's default, or as many as fit the context; 0: only the prompt is computed."""
    cut_max_tokens: bool = False
    """Cut `max_tokens` to what fits the context, instead of refusing more."""
    temperature: Temperature | None = None  # type: ignore[assignment]
    top_p: TopP | None = None  # type: ignore[assignment]
    top_k: TopK | None = None  # type: ignore[assignment]
    min_p: MinP | None = None  # type: ignore[assignment]
    repetition_penalty: RepetitionPenalty | None = None  # type: ignore[assignment]
    seed: Seed | None = None
    """The same seed gives the same answer; None: a random one for every prompt."""
    logit_bias: LogitBiases = field(default_factory=dict)
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    logprob_token_ids: LogprobTokenIds = ()
    stop: StopStrings = ()
    stop_token_ids: StopTokenIds = ()
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    constraint: Constraint | None = None
    """Grammar of the output; `ConstraintChecks` decides whether it can be enforced."""

    def num_reported(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Tokens in an answer, alternatives to them included."""
        scored = 0 if self.prompt_logprobs is None else prompt_tokens
        alternatives = max(self.logprobs or 0, self.prompt_logprobs or 0, len(self.logprob_token_ids))
        return (completion_tokens + scored) * (1 + alternatives)

    def check(self, bounds: ServedBounds) -> None:
        """Raise InvalidRequest if a value is out of bounds, whatever the prompt is."""
        given = {name: getattr(self, name) for name in OPTIONS}
        try:
            _BOUNDED.model_validate(given, context=bounds)
        except ValidationError as error:
            raise refusal_of(error, given) from None
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}.",
                param="min_tokens",
            )
        if self.logprobs and self.logprob_token_ids:
            raise InvalidRequest(
                "logprob_token_ids are reported in place of the most likely tokens: leave out their number.",
                param="logprob_token_ids",
            )
        self.check_ends()

    def check_ends(self) -> None:
        """Check that no option conflicts with a grammar, which decides where the output ends.

        Raises InvalidRequest.
        """
        if self.constraint is None:
            return
        for name in ("min_tokens", "ignore_eos"):
            if getattr(self, name):
                raise InvalidRequest(
                    f"{name} cannot be used with {self.constraint.param}, which says where the output ends.",
                    param=name,
                )

    def resolve(
        self,
        *,
        prompt_tokens: int,
        room: int,
        seed: int,
        vocab_size: int,
        defaults: SamplingDefaults = OPENAI_DEFAULTS,
    ) -> sampling_pb2.SamplingParams:
        """The parameters for workers; these options must have passed `check`.

        `seed` is an int64, and `room` the number of tokens that the context holds after the prompt, at least
        1. Raises InvalidRequest when more are asked for.
        """
        given = {name: getattr(self, name) for name in _FOR_WORKERS}
        values = asdict(defaults) | {name: value for name, value in given.items() if value is not None}
        max_tokens = room if values["max_tokens"] is None else values["max_tokens"]
        if self.max_tokens is None:
            max_tokens = min(max(max_tokens, self.min_tokens), room)
        elif self.cut_max_tokens:
            max_tokens = min(max_tokens, room)
        for name, value in (("max_tokens", max_tokens), ("min_tokens", self.min_tokens)):
            if value > room:
                raise InvalidRequest(
                    f"{name} is {value}, but the prompt has {prompt_tokens} tokens, and the context holds"
                    f" {room} more.",
                    param=name,
                    code="context_length_exceeded",
                )
        top_p, top_k = values["top_p"], values["top_k"]
        if top_p == 0.0:  # in OpenAI's API: only the most likely token
            top_p, top_k = 1.0, 1
        resolved: dict[str, Any] = {
            "max_tokens": max(max_tokens, 1),
            "temperature": 0.0 if values["temperature"] < _COLDEST else values["temperature"],
            "top_p": top_p,
            "top_k": 0 if top_k >= vocab_size else max(top_k, 0),
            "seed": seed,
            "logprobs": 0 if self.logprob_token_ids else values.get("logprobs"),
            "grammar": None if self.constraint is None else grammar_to_proto(self.constraint.grammar),
        }
        return sampling_pb2.SamplingParams(**(values | resolved))


_FIELDS: Final[dict[str, Any]] = {
    name: (hint, ...) for name, hint in get_type_hints(SamplingOptions, include_extras=True).items()
}
OPTIONS: Final = _FIELDS.keys()
_FOR_WORKERS: Final = (OPTIONS & set(sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name)) - {"stop"}
"""Options that workers get, under the same names."""
CHANGE_NO_TOKEN: Final = {"logprobs", "prompt_logprobs", "logprob_token_ids", "drafts"}
"""Parameters of workers that say what is reported, or how fast tokens come."""
_BOUNDED: Final[type[BaseModel]] = create_model("SamplingOptions", __config__=STRICT, **_FIELDS)
"""The same fields as a pydantic model."""


def derive_seed(seed: int, index: int) -> int:
    """The seed of the index-th completion of a prompt, as an int64; that of the first is `seed` modulo 2^64.

    SplitMix64's finalizer: neighbouring indices give unrelated seeds.
    """
    mixed = (seed + index * 0x9E3779B97F4A7C15) & _UINT64
    if index:
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _UINT64
        mixed ^= mixed >> 31
    return mixed - (1 << 64) if mixed >> 63 else mixed
