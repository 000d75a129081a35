"""The HTTP APIs as an OpenAPI document, generated from the types of their bodies and answers.

Served at /openapi.json. Bounds are those of the served model. A body that the document forbids is refused:
see tests/faults/routers/test_fuzzed_frontends.py. JSON Schema cannot express some rules (prompt and answer
must fit the context, tool messages answer calls), so some bodies that it allows are refused too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from common.version import VERSION
from router.api.endpoints.record import Api, ApiEndpoint
from router.api.generation.params.bounds import ServedBounds, resolved

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
_PARAMETER: Final = re.compile(r"{(\w+):path}")


def openapi_document(apis: Sequence[Api], model_name: str, bounds: ServedBounds) -> Schema:
    """The document for one served model, as JSON values."""
    vendors = dict.fromkeys(api.vendor for api in apis if api.vendor)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Baton",
            "version": VERSION,
            "summary": f"APIs of {' and '.join(vendors)} over {model_name}.",
        },
        "security": [{}, {"key": []}],
        "paths": {
            _PARAMETER.sub(r"{\1}", endpoint.path): _path(api, endpoint)
            for api in apis
            for endpoint in documented(api)
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": resolved(_schemas(apis), bounds),
        },
    }


def documented(api: Api) -> list[ApiEndpoint]:
    return [endpoint for endpoint in api.endpoints if endpoint.answer is not None]


def _path(api: Api, endpoint: ApiEndpoint) -> Schema:
    content: Schema = {"application/json": {"schema": _ref(endpoint.answer)}}
    operation: Schema = {"summary": endpoint.summary}
    statuses: Sequence[str] = ("401", "403", *endpoint.refusals)
    description = endpoint.summary
    if endpoint.event is not None:
        # OpenAPI 3.1 has no word for the items of a stream.
        events = [_ref(part) for part in _members(endpoint.event)]
        content["text/event-stream"] = {"x-event-schema": {"anyOf": events}}
    if endpoint.body is not None:
        body = {"application/json": {"schema": _ref(endpoint.body)}}
        operation["requestBody"] = {"required": True, "content": body}
        statuses, description = list(_REFUSALS), "The answer; events with `stream`."
    error = {"application/json": {"schema": _ref(api.error)}}
    refusals = {status: {"description": _REFUSALS[status], "content": error} for status in statuses}
    operation["responses"] = {"200": {"description": description, "content": content}} | refusals
    path: Schema = {endpoint.method.lower(): operation}
    if names := _PARAMETER.findall(endpoint.path):
        text = {"type": "string"}
        path["parameters"] = [{"name": n, "in": "path", "required": True, "schema": text} for n in names]
    return path


def _schemas(apis: Sequence[Api]) -> Schema:
    """Schemas of all bodies and answers, with their definitions."""
    endpoints = [endpoint for api in apis for endpoint in documented(api)]
    bodies = dict.fromkeys(endpoint.body for endpoint in endpoints if endpoint.body is not None)
    answers = [kind for endpoint in endpoints for kind in (endpoint.answer, *_members(endpoint.event))]
    answers += [api.error for api in apis]
    _, found = models_json_schema([(body, "validation") for body in bodies], ref_template=_REFERENCE)
    _, written = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in dict.fromkeys(answers) if kind is not None],
        ref_template=_REFERENCE,
    )
    both = found["$defs"].keys() & written["$defs"].keys()
    assert not both, f"a body and an answer have the same name: {both}"
    definitions: Schema = found["$defs"] | written["$defs"]
    return definitions


def _members(kind: Any) -> tuple[Any, ...]:
    """Members of a union; otherwise `kind` alone."""
    return get_args(kind) or (kind,)


def _ref(kind: Any) -> Schema:
    if get_origin(kind) is list or isinstance(kind, UnionType):
        schema: Schema = TypeAdapter(kind).json_schema(ref_template=_REFERENCE)
        schema.pop("$defs", None)  # they are among those of the document
        return schema
    return {"$ref": _REFERENCE.format(model=kind.__name__)}
