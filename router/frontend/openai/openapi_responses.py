"""JSON schemas of what the HTTP API answers, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ANSWERS"]

_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_NUMBER: Final = {"type": "number"}
_TIME: Final = {"type": "integer", "description": "Unix time in seconds."}


def _object(optional: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    """With these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _answer(kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    return _object(
        ("timings",),
        id=_TEXT,
        object={"const": kind},
        created=_TIME,
        model=_TEXT,
        choices=_list(choice),
        usage=_object(
            prompt_tokens=_COUNT,
            completion_tokens=_COUNT,
            total_tokens=_COUNT,
            prompt_tokens_details=_object(cached_tokens=_COUNT),
        ),
        timings=_TIMINGS,
    )


def _choice(logprobs: Mapping[str, Any], **content: Any) -> dict[str, Any]:
    return _object(
        index=_COUNT,
        **content,
        logprobs=_or_null(logprobs),
        finish_reason={"enum": ["stop", "length", "abort"]},
        stop_reason={"type": ["string", "integer", "null"], "description": "What the answer stopped at."},
    )


_SPAN: Final = _object(begin_s=_NUMBER, end_s=_NUMBER, first_token=_COUNT, num_tokens=_COUNT, bytes=_COUNT)
_TIMINGS: Final = _object(
    queue_s=_NUMBER,
    prefill_s=_NUMBER,
    reserve_s=_NUMBER,
    transfer_s=_NUMBER,
    first_decode_s=_NUMBER,
    ttft_s=_NUMBER,
    e2e_s=_NUMBER,
    chunks=_list(_SPAN),
    pushes=_list(_SPAN),
    prefill_worker=_TEXT,
    decode_worker=_TEXT,
    placement=_TEXT,
    waited={"type": "object", "additionalProperties": _NUMBER},
)
_TOKEN: Final = {"token": _TEXT, "logprob": _NUMBER, "bytes": _list(_COUNT)}

ANSWERS: Final[Mapping[str, Any]] = {
    "Completion": _answer(
        "text_completion",
        _choice(
            _object(
                tokens=_list(_TEXT),
                token_logprobs=_list(_NUMBER),
                top_logprobs=_list({"type": "object", "additionalProperties": _NUMBER}),
                text_offset=_list(_COUNT),
            ),
            text=_TEXT,
        ),
    ),
    "ChatCompletion": _answer(
        "chat.completion",
        _choice(
            _object(
                content=_list(_object(**_TOKEN, top_logprobs=_list(_object(**_TOKEN)))),
                refusal={"type": "null"},
            ),
            message=_object(role={"const": "assistant"}, content=_TEXT, refusal={"type": "null"}),
        ),
    ),
    "Model": _object(
        id=_TEXT, object={"const": "model"}, created=_TIME, owned_by=_TEXT, max_model_len=_COUNT
    ),
    "Models": _object(object={"const": "list"}, data=_list({"$ref": "#/components/schemas/Model"})),
    "Status": _object(status=_TEXT),
    "Version": _object(version=_TEXT),
    "Error": _object(error=_object(message=_TEXT, type=_TEXT, param=_or_null(_TEXT), code=_or_null(_TEXT))),
}
