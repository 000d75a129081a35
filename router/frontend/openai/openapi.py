"""The HTTP API as an OpenAPI document, derived from what validates the requests.

Served at /openapi.json. The bounds are those of the served model: a body that the document calls wrong is
refused; tests/faults/test_fuzzed_frontends.py checks it. A few rules between parameters are beyond JSON
Schema (prompt and answer must fit the context together, tool messages answer calls), so some bodies that it
calls right are refused too.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final, TypeAlias

from router.frontend.openai.openapi_responses import ANSWERS
from router.frontend.openai.requests import (
    NEUTRAL,
    WITHOUT_EFFECT,
    ChatCompletionBody,
    CompletionBody,
    GenerationBody,
)
from router.processing.sampling_options import (
    BOUNDS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from router.processing.served_model import ServedModel
from router.request_limits import RequestLimits

__all__ = ["openapi_document"]

Schema: TypeAlias = dict[str, Any]

_BODIES: Final[tuple[type[GenerationBody], ...]] = (CompletionBody, ChatCompletionBody)
_REFUSALS: Final = {
    "400": "The request is at fault; `param` says where.",
    "401": "The API key is missing or unknown.",
    "403": "The API key is for /metrics and /sd/workers only.",
    "404": "There is no such model.",
    "408": "The request did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not sent as application/json.",
    "429": "The cluster or this API key has too much to do; Retry-After says when to come back.",
    "431": "The headers are too large.",
    "500": "The server failed; its log has the details under the request's id.",
    "503": "No worker can take or finish the request now; Retry-After says when to come back.",
    "504": "The request's own `timeout` has passed.",
}


def openapi_document(model: ServedModel, limits: RequestLimits) -> Schema:
    """For one served model, as it would be sent in JSON."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Baton",
            "version": version("baton-llm"),
            "summary": f"OpenAI's API over {model.name}.",
        },
        "security": [{}, {"key": []}],
        "paths": {
            "/v1/completions": {"post": _generation("CompletionBody", "Completion", "Continue a text.")},
            "/v1/chat/completions": {
                "post": _generation("ChatCompletionBody", "ChatCompletion", "Answer in a conversation.")
            },
            "/v1/models": {"get": _reading("Models", "The served model, as a list.")},
            "/v1/models/{name}": {
                "get": _reading("Model", "The served model.", "404"),
                "parameters": [
                    {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
                ],
            },
            "/live": {"get": _reading("Status", "The process answers.")},
            "/ready": {"get": _reading("Status", "A request sent now would find workers.", "503")},
            "/health": {"get": _reading("Status", "The same as /ready.", "503")},
            "/version": {"get": _reading("Version", "Of Baton.")},
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {**ANSWERS, **_bodies(model, limits)},
        },
    }


def _generation(body: str, answer: str, summary: str) -> Schema:
    in_one_piece = {"application/json": {"schema": _ref(answer)}}
    streamed: Schema = {"text/event-stream": {}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(body)}}},
        "responses": {
            "200": {"description": "The answer; events with `stream`.", "content": in_one_piece | streamed},
            **_refusals(*_REFUSALS),
        },
    }


def _reading(answer: str, summary: str, *refusals: str) -> Schema:
    content = {"application/json": {"schema": _ref(answer)}}
    return {
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": content},
            **_refusals("401", "403", *refusals),
        },
    }


def _refusals(*statuses: str) -> Schema:
    content = {"application/json": {"schema": _ref("Error")}}
    return {status: {"description": _REFUSALS[status], "content": content} for status in statuses}


def _bodies(model: ServedModel, limits: RequestLimits) -> Schema:
    """The schemas of both bodies, and those that they refer to."""
    schemas: Schema = {}
    for kind in _BODIES:
        schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        for name, rule in _rules(model, limits).items():
            if name in schema["properties"]:
                _tighten(schema["properties"][name], rule)
        schema["properties"] |= {name: {} for name in WITHOUT_EFFECT}
        schema["properties"] |= {name: {"enum": [*asks, None]} for name, asks in NEUTRAL.items()}
        schema["additionalProperties"] = False
        schemas[kind.__name__] = schema
    return schemas


def _rules(model: ServedModel, limits: RequestLimits) -> Mapping[str, Mapping[str, Schema]]:
    """What is known of values beyond their types: by parameter, and by the JSON type that it is said of."""
    token_id = {"minimum": 0, "maximum": model.vocab_size - 1}
    longest = model.max_model_len - 1
    bounds = {name: {"minimum": low, "maximum": high} for name, (low, high) in BOUNDS.items()}
    tokens = {"minimum": 1, "maximum": longest}
    text = {"minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
    return {
        **{name: {"number": bound, "integer": bound} for name, bound in bounds.items()},
        "logprobs": {"integer": {"minimum": 0, "maximum": limits.max_logprobs}},
        "top_logprobs": {"integer": {"minimum": 0, "maximum": limits.max_logprobs}},
        "min_tokens": {"integer": {"minimum": 0, "maximum": longest}},
        "max_tokens": {"integer": tokens},
        "max_completion_tokens": {"integer": tokens},
        "n": {"integer": {"minimum": 1, "maximum": limits.max_completions}},
        "priority": {"integer": {"enum": [0]}},
        "model": {"string": {"enum": [model.name, ""]}},
        "stop": {"string": text, "array": {"maxItems": MAX_STOP_STRINGS, "items": {"type": "string"} | text}},
        "stop_token_ids": {
            "array": {"maxItems": MAX_STOP_TOKEN_IDS, "items": {"type": "integer"} | token_id}
        },
        "prompt": {"string": {"minLength": 1}, "array": {"minItems": 1}, "integer": token_id},
        "messages": {"array": {"minItems": 1}},
    }


def _tighten(schema: Schema, rule: Mapping[str, Schema]) -> None:
    """Adds to every part of `schema` what `rule` says of its type."""
    schema.update(rule.get(schema.get("type", ""), {}))
    for part in (*schema.get("anyOf", ()), schema.get("items")):
        if part is not None:
            _tighten(part, rule)


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
