"""The HTTP frontend: OpenAI's API and the routes that operators need."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from importlib.metadata import version
from typing import Final, TypeAlias

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from router.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RouterError,
    Unavailable,
)
from router.frontend.api_keys import ApiKeys
from router.frontend.disclosure import as_router_error
from router.frontend.http.auth import RequireApiKey
from router.frontend.http.body import read_json_body
from router.frontend.http.disconnect import ClientGone, ends_with_client
from router.frontend.http.event_stream import EventStream
from router.frontend.http.refusal import error_response, new_request_id
from router.frontend.openai.errors import REQUEST_ID_HEADER, error_event
from router.frontend.openai.openapi import openapi_document
from router.frontend.openai.requests import ChatCompletionBody, CompletionBody, GenerationBody, parse
from router.frontend.openai.responses import Answer, EventWriter
from router.frontend.openai.serializers import ChatSerializer, CompletionSerializer, Serializer
from router.processing.completion import Chunk
from router.processing.generation import Generation
from router.processing.run import Run

__all__ = ["build_app"]

_Endpoint: TypeAlias = Callable[[Request, str], Awaitable[Response]]
"""Takes the request and its id."""
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
    metrics_keys: ApiKeys | None = None,
    cors_origins: Sequence[str] = (),
) -> Starlette:
    """An ASGI application over `generation`; see HttpServer for the parameters."""
    openai = _OpenAI(generation, max_body_bytes)
    operations = _Operations(generation, metrics, worker_targets)
    return Starlette(
        routes=[
            Route("/v1/completions", _answering(openai.completions, "cmpl"), methods=["POST"]),
            Route("/v1/chat/completions", _answering(openai.chat_completions, "chatcmpl"), methods=["POST"]),
            Route("/v1/models", _answering(openai.models), methods=["GET"]),
            Route("/v1/models/{name:path}", _answering(openai.model), methods=["GET"]),
            Route("/live", _answering(operations.live), methods=["GET"]),
            Route("/ready", _answering(operations.ready), methods=["GET"]),
            Route("/health", _answering(operations.ready), methods=["GET"]),
            Route("/metrics", _answering(operations.metrics), methods=["GET"]),
            Route("/version", _answering(operations.version), methods=["GET"]),
            Route("/openapi.json", _answering(operations.openapi), methods=["GET"]),
            Route("/sd/workers", _answering(operations.workers), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _no_such_route},
        middleware=[*_cors(cors_origins), Middleware(RequireApiKey, keys, metrics_keys)],
    )


def _cors(origins: Sequence[str]) -> list[Middleware]:
    """Goes before the keys: a browser asks for leave without one."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID_HEADER, "retry-after"],
        )
    ]


class _OpenAI:
    """The routes of OpenAI's API."""

    def __init__(self, generation: Generation, max_body_bytes: int) -> None:
        self._generation = generation
        self._max_body_bytes = max_body_bytes

    async def completions(self, request: Request, request_id: str) -> Response:
        body = parse(CompletionBody, await read_json_body(request, self._max_body_bytes))
        async with ends_with_client(request.receive):
            run = await self._generation.start(body.to_request(request_id))
            echo = self._echo(run) if body.echo else ()
            return await self._answer(run, CompletionSerializer(self._generation.tokenizer, echo), body)

    async def chat_completions(self, request: Request, request_id: str) -> Response:
        body = parse(ChatCompletionBody, await read_json_body(request, self._max_body_bytes))
        async with ends_with_client(request.receive):
            run = await self._generation.start(body.to_request(request_id))
            return await self._answer(run, ChatSerializer(self._generation.tokenizer), body)

    async def models(self, request: Request, request_id: str) -> Response:
        return _json({"object": "list", "data": [self._model_card()]})

    async def model(self, request: Request, request_id: str) -> Response:
        name = request.path_params["name"]
        if name != self._generation.model.name:
            raise NotFound(f"The model {name[:100]!r} does not exist.", param="model", code="model_not_found")
        return _json(self._model_card())

    async def _answer(self, run: Run, serializer: Serializer, body: GenerationBody) -> Response:
        chunks = run.chunks()
        if body.stream:
            # The status is 200 only once there is something to stream: an overloaded or failing
            # cluster is still a proper HTTP error.
            first = await anext(chunks)
            writer = EventWriter(run, serializer, include_usage=body.include_usage)
            return EventStream(_events(writer, first, chunks, run.request.id))
        answer = Answer(run, serializer)
        async with aclosing(chunks):
            async for chunk in chunks:
                answer.add(chunk)
        return Response(answer.body(), media_type=_JSON)

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

    async def live(self, request: Request, request_id: str) -> Response:
        """The process answers; that is all."""
        return _json({"status": "live"})

    async def ready(self, request: Request, request_id: str) -> Response:
        """200 while a request sent now would find workers, else 503."""
        if not self._generation.ready():
            raise Unavailable("Not ready: no workers, or shutting down.", code="not_ready", public=True)
        return _json({"status": "ready"})

    async def metrics(self, request: Request, request_id: str) -> Response:
        return Response(generate_latest(self._metrics), headers={"content-type": CONTENT_TYPE_LATEST})

    async def version(self, request: Request, request_id: str) -> Response:
        return _json({"version": version("baton-llm")})

    async def openapi(self, request: Request, request_id: str) -> Response:
        return _json(openapi_document(self._generation.model, self._generation.limits))

    async def workers(self, request: Request, request_id: str) -> Response:
        """Prometheus' http_sd: where the workers' own metrics are."""
        return _json([{"targets": list(self._worker_targets()), "labels": {}}])


async def _events(
    writer: EventWriter, first: Chunk, chunks: AsyncGenerator[Chunk, None], request_id: str
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
        yield error_event(as_router_error(error), request_id)


def _answering(endpoint: _Endpoint, kind: str = "req") -> Callable[[Request], Awaitable[Response]]:
    """`endpoint`, with an id for every request and its errors as responses. Ids begin with `kind`."""

    async def answer(request: Request) -> Response:
        request_id = new_request_id(kind)
        try:
            response = await endpoint(request, request_id)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=_CLIENT_GONE_STATUS)
        except Exception as error:
            return error_response(as_router_error(error), request_id)
        response.headers[REQUEST_ID_HEADER] = request_id
        return response

    return answer


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    route = f"{request.method} {request.url.path[:200]}"
    refusal: RouterError
    if error.status_code == MethodNotAllowed.http_status:
        refusal = MethodNotAllowed(f"{route} is not allowed.")
    elif error.status_code == NotFound.http_status:
        refusal = NotFound(f"There is no {route}.")
    else:
        refusal = InvalidRequest(error.detail)
    response = error_response(refusal)
    response.headers.update(error.headers or {})
    return response


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type=_JSON)
