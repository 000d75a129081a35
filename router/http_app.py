"""The HTTP front door: OpenAI's API and the routes that operators need."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from importlib.metadata import version
from typing import Final

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from router.api_keys import ApiKeys
from router.completion import Chunk
from router.disconnect import ClientGone, ends_with_client
from router.errors import (
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RouterError,
    TooLarge,
    Unavailable,
)
from router.event_stream import EventStream
from router.generation import Generation
from router.http_auth import RequireApiKey
from router.openai_answer import Answer, EventWriter
from router.openai_api import ChatCompletionBody, CompletionBody, GenerationBody, parse
from router.openai_errors import error_body, error_event, error_headers
from router.openai_shape import ChatShape, CompletionShape, Shape
from router.openapi import openapi_document
from router.run import Run

__all__ = ["build_app"]

_log = logging.getLogger(__name__)

_CLIENT_GONE_STATUS: Final = 499
"""nginx's; nobody reads it."""
_JSON: Final = "application/json"


def build_app(
    generation: Generation,
    *,
    metrics: CollectorRegistry,
    worker_targets: Callable[[], Sequence[str]],
    max_body_bytes: int,
    keys: ApiKeys | None = None,
) -> Starlette:
    """An ASGI application over `generation`; see HttpServer for the parameters."""
    openai = _OpenAI(generation, max_body_bytes)
    operations = _Operations(generation, metrics, worker_targets)
    return Starlette(
        routes=[
            Route("/v1/completions", _answering(openai.completions), methods=["POST"]),
            Route("/v1/chat/completions", _answering(openai.chat_completions), methods=["POST"]),
            Route("/v1/models", _answering(openai.models), methods=["GET"]),
            Route("/v1/models/{name:path}", _answering(openai.model), methods=["GET"]),
            Route("/live", _answering(operations.live), methods=["GET"]),
            Route("/ready", _answering(operations.ready), methods=["GET"]),
            Route("/metrics", _answering(operations.metrics), methods=["GET"]),
            Route("/version", _answering(operations.version), methods=["GET"]),
            Route("/openapi.json", _answering(operations.openapi), methods=["GET"]),
            Route("/sd/workers", _answering(operations.workers), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _no_such_route},
        middleware=[] if keys is None else [Middleware(RequireApiKey, keys=keys)],
    )


class _OpenAI:
    """The routes of OpenAI's API."""

    def __init__(self, generation: Generation, max_body_bytes: int) -> None:
        self._generation = generation
        self._max_body_bytes = max_body_bytes

    async def completions(self, request: Request) -> Response:
        body = parse(CompletionBody, await _read(request, self._max_body_bytes))
        async with ends_with_client(request.receive):
            run = await self._generation.start(body.to_request())
            echo = self._echo(run) if body.echo else ()
            return await self._answer(run, CompletionShape(self._generation.tokenizer, echo), body)

    async def chat_completions(self, request: Request) -> Response:
        body = parse(ChatCompletionBody, await _read(request, self._max_body_bytes))
        async with ends_with_client(request.receive):
            run = await self._generation.start(body.to_request())
            return await self._answer(run, ChatShape(self._generation.tokenizer), body)

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._model_card()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._generation.model.name:
            raise NotFound(f"The model {name[:100]!r} does not exist.", param="model", code="model_not_found")
        return _json(self._model_card())

    async def _answer(self, run: Run, shape: Shape, body: GenerationBody) -> Response:
        headers = {"x-request-id": run.request.id}
        chunks = run.chunks()
        if body.stream:
            # The status is 200 only once there is something to stream: an overloaded or failing
            # cluster is still a proper HTTP error.
            first = await anext(chunks)
            writer = EventWriter(run, shape, include_usage=body.include_usage)
            return EventStream(_events(writer, first, chunks), headers)
        answer = Answer(run, shape)
        async with aclosing(chunks):
            async for chunk in chunks:
                answer.add(chunk)
        return Response(answer.body(), headers=headers, media_type=_JSON)

    def _echo(self, run: Run) -> list[str]:
        """The prompt of every completion, as text."""
        prompts = [
            prompt
            if isinstance(prompt, str)
            else self._generation.tokenizer.decode(run.prompt(i * run.request.n))
            for i, prompt in enumerate(run.request.prompts)
        ]
        return [prompt for prompt in prompts for _ in range(run.request.n)]

    def _model_card(self) -> dict[str, object]:
        model = self._generation.model
        return {
            "id": model.name,
            "object": "model",
            "created": self._generation.created,
            "owned_by": "baton",
            "max_model_len": model.max_model_len,
        }


class _Operations:
    """The routes for orchestrators and monitoring."""

    def __init__(
        self, generation: Generation, metrics: CollectorRegistry, worker_targets: Callable[[], Sequence[str]]
    ) -> None:
        self._generation = generation
        self._metrics = metrics
        self._worker_targets = worker_targets

    async def live(self, request: Request) -> Response:
        """The process answers; that is all."""
        return _json({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """200 while a request sent now would find workers, else 503."""
        if not self._generation.ready():
            raise Unavailable("Not ready: no workers, or shutting down.", code="not_ready")
        return _json({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._metrics), headers={"content-type": CONTENT_TYPE_LATEST})

    async def version(self, request: Request) -> Response:
        return _json({"version": version("baton-llm")})

    async def openapi(self, request: Request) -> Response:
        return _json(openapi_document(self._generation.model, self._generation.limits))

    async def workers(self, request: Request) -> Response:
        """Prometheus' http_sd: where the workers' own metrics are."""
        return _json([{"targets": list(self._worker_targets()), "labels": {}}])


async def _events(
    writer: EventWriter, first: Chunk, chunks: AsyncGenerator[Chunk, None]
) -> AsyncGenerator[bytes, None]:
    """Never raises: what fails now can only be told as an event."""
    try:
        async with aclosing(chunks):
            yield writer.opening() + writer.event(first)
            async for chunk in chunks:
                event = writer.event(chunk)
                if event:
                    yield event
            yield writer.closing()
    except Exception as error:
        yield error_event(_as_router_error(error))


async def _read(request: Request, limit: int) -> bytes:
    """The body. Raises TooLarge as early as possible, before the body is in memory."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request's body may have at most {limit} bytes.")


def _answering(
    endpoint: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """`endpoint`, with its errors as responses."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=_CLIENT_GONE_STATUS)
        except Exception as error:
            return _error_response(_as_router_error(error))

    return answer


def _as_router_error(error: Exception) -> RouterError:
    """Errors that are not ours are bugs: they go to the log, not to the client."""
    if isinstance(error, RouterError):
        return error
    _log.error("A request failed in an unexpected way.", exc_info=error)
    return Internal("The server failed to process the request; its log has the details.")


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    route = f"{request.method} {request.url.path[:200]}"
    if error.status_code == MethodNotAllowed.http_status:
        return _error_response(MethodNotAllowed(f"{route} is not allowed."), error.headers)
    if error.status_code == NotFound.http_status:
        return _error_response(NotFound(f"There is no {route}."))
    return _error_response(InvalidRequest(error.detail))


def _error_response(error: RouterError, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        error_body(error),
        status_code=error.http_status,
        headers={**error_headers(error), **(headers or {})},
    )


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type=_JSON)
