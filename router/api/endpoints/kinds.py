"""The kinds of endpoints: they generate text, compute something else from a JSON body, or have no body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from router.api.endpoints.body import read_json_body
from router.api.endpoints.event_stream import EventStream, Writer, ends_with_client
from router.api.endpoints.record import ApiEndpoint, Backend
from router.api.generation.generation import Generation
from router.api.generation.off_loop import off_loop
from router.api.generation.params.validation import parse, require_few_parts
from router.api.generation.run import Run
from router.api.scheduled_body import ScheduledBody

_JSON: Final = "application/json"
_TOKEN_BYTES: Final = 64
"""Bytes of an answer for each token that it reports, roughly."""
_BodyT = TypeVar("_BodyT", bound=BaseModel)
_ScheduledT = TypeVar("_ScheduledT", bound=ScheduledBody)
_T = TypeVar("_T")


def generates(
    path: str,
    body: type[_ScheduledT],
    writer: Callable[[Run, _ScheduledT, Generation], Writer],
    **about: Any,
) -> ApiEndpoint:
    """An endpoint whose answer `writer` renders, whole or as a stream. `about`: fields of ApiEndpoint."""

    async def serve(backend: Backend, request: Request) -> Response:
        model, asked, generation = await _read(backend, request, body, body.to_request)
        async with ends_with_client(request.receive):
            run = await model.start(generation)
            answer = writer(run, asked, model)
            if asked.stream:
                return await EventStream.of(run, answer)
            await run.serve(answer.add)
            usage = run.usage
            reported = generation.options.num_reported(usage.prompt_tokens, usage.completion_tokens)
            return Response(await off_loop(_TOKEN_BYTES * reported, answer.body), media_type=_JSON)

    return ApiEndpoint(path=path, serve=serve, body=body, **about)


def computes(
    path: str,
    body: type[_BodyT],
    convert: Callable[[_BodyT, str], _T],
    compute: Callable[[Generation, _T], Awaitable[Any]],
    answer: Any,
    summary: str,
    id_prefix: str = "req",
) -> ApiEndpoint:
    """An endpoint whose answer is the JSON of `compute(model, convert(body, request id))`."""

    async def serve(backend: Backend, request: Request) -> Response:
        model, _, asked = await _read(backend, request, body, convert)
        async with ends_with_client(request.receive):
            return json_response(await compute(model, asked))

    return ApiEndpoint(path=path, serve=serve, body=body, answer=answer, summary=summary, id_prefix=id_prefix)


def changes(
    path: str, body: type[_BodyT], change: Callable[[Generation, _BodyT], Awaitable[Response]]
) -> ApiEndpoint:
    """An endpoint that changes what is served. A change is completed even if the client disconnects."""

    async def serve(backend: Backend, request: Request) -> Response:
        model, asked, _ = await _read(backend, request, body, lambda *_: None, adapted=False)
        return await asyncio.shield(asyncio.ensure_future(change(model, asked)))

    return ApiEndpoint(path=path, serve=serve, body=body, changes_service=True)


def reads(
    path: str,
    read: Callable[[Backend, Request], Any],
    answer: Any = None,
    summary: str = "",
    *refusals: str,
    method: str = "GET",
) -> ApiEndpoint:
    """An endpoint without a body, whose answer is what `read` returns: a Response, or JSON."""

    async def serve(backend: Backend, request: Request) -> Response:
        value = read(backend, request)
        return value if isinstance(value, Response) else json_response(value)

    about = {"answer": answer, "summary": summary, "refusals": refusals}
    return ApiEndpoint(path=path, serve=serve, method=method, **about)


def json_response(value: Any) -> Response:
    """`value` as JSON, or bytes that are JSON already."""
    return Response(value if isinstance(value, bytes) else orjson.dumps(value), media_type=_JSON)


async def _read(
    backend: Backend,
    request: Request,
    kind: type[_BodyT],
    convert: Callable[[_BodyT, str], _T],
    *,
    adapted: bool = True,
) -> tuple[Generation, _BodyT, _T]:
    """The model that the body names, whose bounds apply to other fields; the body, and it converted.

    `adapted`: its lora_path names an adapter.
    """
    raw = await read_json_body(request, backend.max_body_bytes)

    def parsed() -> tuple[Generation, _BodyT, _T]:
        require_few_parts(raw)
        name, adapter = _model_in(raw)
        model = backend.models.find(name, adapter if adapted else "")
        body = parse(kind, raw, model.bounds)
        return model, body, convert(body, request.state.id)

    return await off_loop(len(raw), parsed)


class _Named(BaseModel):
    """The only fields that are looked at; others are parsed, and no Python objects are made of them."""

    model_config = ConfigDict(extra="ignore")

    model: Any = None
    lora_path: Any = None


def _model_in(raw: bytes) -> tuple[str, str]:
    """And its adapter. Empty if there is none, or if the body is wrong, which `parse` reports."""
    try:
        named = _Named.model_validate_json(raw)
    except ValidationError:
        return "", ""
    model, adapter = (name if isinstance(name, str) else "" for name in (named.model, named.lora_path))
    return model, adapter
