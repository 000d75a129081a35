"""The HTTP API as an OpenAPI document, generated from the request models and answer types.

Served at /openapi.json. Bounds are those of the served model. A body that the document forbids is refused:
see tests/faults/routers/test_fuzzed_frontends.py. JSON Schema cannot express some rules (prompt and answer
must fit the context, tool messages answer calls), so some bodies that it allows are refused too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from common.version import VERSION
from router.api.anthropic.requests import CountTokensBody, MessagesBody
from router.api.anthropic.schemas import Message, MessageError, MessageEvent
from router.api.generation.params.bounds import ServedBounds, resolved
from router.api.openai.answers import schemas
from router.api.openai.answers.schemas import ChatCompletionChunk, CompletionChunk
from router.api.openai.requests import ChatCompletionBody, CompletionBody
from router.api.openai.responses_api.requests import ResponsesBody
from router.api.openai.responses_api.schemas import Response, ResponseEvent
from router.api.openai.tokenize import DetokenizeBody, TokenizeBody

Schema: TypeAlias = dict[str, Any]

_REFERENCE: Final = "#/components/schemas/{model}"
_REFUSALS: Final = {
    "400": "The request is at fault; `param` says where.",
    "401": "The API key is missing or unknown.",
    "403": "The API key is for monitoring only.",
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
_EVENTS: Final[dict[str, Any]] = {
    "/v1/completions": CompletionChunk,
    "/v1/chat/completions": ChatCompletionChunk,
    "/v1/responses": ResponseEvent,
    "/v1/messages": MessageEvent,
}
"""Data of each event of the routes that stream, except `[DONE]`."""
_POSTS: Final[dict[str, tuple[type[BaseModel], Any, str]]] = {
    "/v1/completions": (CompletionBody, schemas.Completion, "Continue a text."),
    "/v1/chat/completions": (ChatCompletionBody, schemas.ChatCompletion, "Answer in a conversation."),
    "/v1/responses": (ResponsesBody, Response, "Answer in a conversation (OpenAI's Responses API)."),
    "/v1/messages": (MessagesBody, Message, "Answer in a conversation (Anthropic's Messages API)."),
    "/v1/messages/count_tokens": (CountTokensBody, schemas.InputTokens, "Tokens of a conversation."),
    "/v1/completions/render": (CompletionBody, list[schemas.Rendered], "Token ids of the prompts."),
    "/v1/chat/completions/render": (ChatCompletionBody, schemas.Rendered, "Token ids of the prompt."),
    "/tokenize": (TokenizeBody, schemas.Tokenized, "Token ids of a prompt."),
    "/detokenize": (DetokenizeBody, schemas.Detokenized, "Text of token ids."),
}
_GETS: Final[dict[str, tuple[Any, str, tuple[str, ...]]]] = {
    "/v1/models": (schemas.Models, "The served model, as a list.", ()),
    "/v1/models/{name}": (schemas.Model, "The served model.", ("404",)),
    "/live": (schemas.Status, "The process answers.", ()),
    "/ready": (schemas.Readiness, "A request sent now would find workers.", ("503",)),
    "/health": (schemas.Readiness, "The same as /ready.", ("503",)),
    "/ping": (schemas.Readiness, "The same as /ready.", ("503",)),
    "/version": (schemas.Version, "Of Baton.", ()),
}
_ACTIONS: Final[dict[str, tuple[Any, str, tuple[str, ...]]]] = {
    "/v1/sessions/{key}/release": (
        schemas.ReleasedSession,
        "End what requests with this prompt_cache_key have retained.",
        (),
    ),
}
"""Posts without a body."""


def openapi_document(model_name: str, bounds: ServedBounds) -> Schema:
    """The document for one served model, as JSON values."""
    paths: Schema = {
        path: {
            "post": _post(
                *parts,
                _EVENTS.get(path),
                MessageError if path.startswith("/v1/messages") else schemas.Error,
            )
        }
        for path, parts in _POSTS.items()
    }
    paths |= {path: {"get": _get(*parts)} for path, parts in _GETS.items()}
    paths |= {path: {"post": _get(*parts)} for path, parts in _ACTIONS.items()}
    for path, name in (("/v1/models/{name}", "name"), ("/v1/sessions/{key}/release", "key")):
        parameter = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        paths[path]["parameters"] = [parameter]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Baton",
            "version": VERSION,
            "summary": f"APIs of OpenAI and Anthropic over {model_name}.",
        },
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": resolved(_schemas(), bounds),
        },
    }


def _schemas() -> Schema:
    """Schemas of all bodies and answers, with their definitions."""
    bodies = [(body, "validation") for body, _, _ in _POSTS.values()]
    _, found = models_json_schema(bodies, ref_template=_REFERENCE)  # type: ignore[arg-type]
    kinds = [kind for _, kind, _ in _POSTS.values()]
    kinds += [kind for kind, _, _ in (*_GETS.values(), *_ACTIONS.values())]
    kinds += [part for event in _EVENTS.values() for part in _members(event)]
    _, written = TypeAdapter.json_schemas(
        [
            (kind, "validation", TypeAdapter(kind))
            for kind in (*dict.fromkeys(kinds), schemas.Error, MessageError)
        ],
        ref_template=_REFERENCE,
    )
    both = found["$defs"].keys() & written["$defs"].keys()
    assert not both, f"a body and an answer have the same name: {both}"
    definitions: Schema = found["$defs"] | written["$defs"]
    return definitions


def _post(body: type[BaseModel], answer: Any, summary: str, event: Any, error: Any) -> Schema:
    content: Schema = {"application/json": {"schema": _ref(answer)}}
    if event is not None:
        # OpenAPI 3.1 has no word for the items of a stream.
        content["text/event-stream"] = {"x-event-schema": {"anyOf": [_ref(part) for part in _members(event)]}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(body)}}},
        "responses": {
            "200": {"description": "The answer; events with `stream`.", "content": content},
            **_refusals(_REFUSALS, error),
        },
    }


def _get(answer: Any, summary: str, refusals: tuple[str, ...]) -> Schema:
    content = {"application/json": {"schema": _ref(answer)}}
    return {
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": content},
            **_refusals(("401", "403", *refusals), schemas.Error),
        },
    }


def _refusals(statuses: Iterable[str], error: Any) -> Schema:
    content = {"application/json": {"schema": _ref(error)}}
    return {status: {"description": _REFUSALS[status], "content": content} for status in statuses}


def _members(kind: Any) -> tuple[Any, ...]:
    """Members of a union; otherwise `kind` alone."""
    return get_args(kind) or (kind,)


def _ref(kind: Any) -> Schema:
    if get_origin(kind) is list:
        return {"type": "array", "items": _ref(*get_args(kind))}
    return {"$ref": _REFERENCE.format(model=kind.__name__)}
