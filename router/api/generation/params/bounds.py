"""Bounds of every number, string and list in requests, each defined once.

Those of plain sampling parameters are in engine/core/sampling_params.py. The types below are shared by the
request models of all APIs and by SamplingOptions; the OpenAPI document and docs/api.md are generated from
them. A bound that depends on the served model (`Served`) is looked up in the validation context, a
ServedBounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
)
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from engine.core.sampling_params import MAX_LOGIT_BIASES, MAX_LOGPROB_IDS
from router.api.generation.served_model import ServedModel
from router.request_limits import LOGPROBS_LIMIT, MAX_PRIORITY, RequestLimits

_PLACEHOLDER: Final = "x-served"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBounds:
    """Bounds that depend on the served model and on the router's flags."""

    model_names: tuple[str, ...]
    last_token_id: int
    max_new_tokens: int
    """The context minus one token for the prompt."""
    max_completions: int
    max_logprobs: int

    @classmethod
    def of(cls, model: ServedModel, limits: RequestLimits) -> ServedBounds:
        return cls(
            model_names=(model.name, ""),
            last_token_id=model.vocab_size - 1,
            max_new_tokens=model.max_model_len - 1,
            max_completions=limits.max_completions,
            max_logprobs=min(limits.max_logprobs, LOGPROBS_LIMIT),
        )


@dataclass(frozen=True, slots=True)
class Served:
    """Annotation of an integer, or a list's length, whose maximum is a field of ServedBounds.

    Not checked without a context.
    """

    name: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        inner = handler(schema)
        return inner | {"maxItems" if "items" in inner else "maximum": {_PLACEHOLDER: self.name}}

    def _check(self, value: int | list[Any], info: ValidationInfo) -> int | list[Any]:
        size = len(value) if isinstance(value, list) else value
        if isinstance(info.context, ServedBounds) and size > (most := getattr(info.context, self.name)):
            if self.name == "max_new_tokens":
                raise PydanticCustomError(
                    "context_length_exceeded", "The context holds at most {most} tokens more", {"most": most}
                )
            raise PydanticKnownError("less_than_equal", {"le": most})
        return value


@dataclass(frozen=True, slots=True)
class _ServedModelName:
    """Annotation for the OpenAPI document only; Generation answers a wrong name with 404, not 400."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(source)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(schema) | {"enum": {_PLACEHOLDER: "model_names"}}


def resolved(schema: Any, bounds: ServedBounds) -> Any:
    """A JSON schema with the bounds of `Served` filled in."""
    if isinstance(schema, dict):
        if schema.keys() == {_PLACEHOLDER}:
            value = getattr(bounds, schema[_PLACEHOLDER])
            return list(value) if isinstance(value, tuple) else value
        return {key: resolved(value, bounds) for key, value in schema.items()}
    if isinstance(schema, list):
        return [resolved(value, bounds) for value in schema]
    return schema


TokenId: TypeAlias = Annotated[int, Field(ge=0), Served("last_token_id")]
MaxTokens: TypeAlias = Annotated[int, Field(ge=0)]
"""What the context holds after the prompt is checked when the prompt is tokenized."""
Completions: TypeAlias = Annotated[int, Field(ge=1), Served("max_completions")]
Logprobs: TypeAlias = Annotated[int, Field(ge=0), Served("max_logprobs")]
ModelName: TypeAlias = Annotated[str, _ServedModelName()]

Seed: TypeAlias = Annotated[int, Field(ge=-(1 << 63), le=(1 << 64) - 1)]
Timeout: TypeAlias = Annotated[float, Field(gt=0.0)]
Priority: TypeAlias = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]

MAX_STOPS: Final = 16
MAX_STOP_IDS: Final = 256

StopStrings: TypeAlias = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...],
    Field(max_length=MAX_STOPS, fail_fast=True),
]
StopTokenIds: TypeAlias = Annotated[tuple[TokenId, ...], Field(max_length=MAX_STOP_IDS, fail_fast=True)]

LogprobTokenIds: TypeAlias = Annotated[tuple[TokenId, ...], Field(max_length=MAX_LOGPROB_IDS, fail_fast=True)]


def at_most(count: int) -> BeforeValidator:
    """Refuse a larger dictionary before its values are validated."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise PydanticKnownError(
                "too_long", {"field_type": "Dictionary", "max_length": count, "actual_length": len(value)}
            )
        return value

    return BeforeValidator(check)


_BiasedId: TypeAlias = Annotated[int, Field(ge=0, strict=False), Served("last_token_id")]
LogitBiases: TypeAlias = Annotated[
    dict[_BiasedId, Annotated[float, Field(ge=-100.0, le=100.0)]],
    Field(max_length=MAX_LOGIT_BIASES),
    at_most(MAX_LOGIT_BIASES),
]
"""Biases by token id; JSON has the ids as strings."""
