"""The HTTP frontend: the APIs of OpenAI and Anthropic, and the routes that operators need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from common.version import VERSION
from router.api.access import ApiKeys
from router.api.disclosure import as_router_error
from router.api.generation.generation import Generation
from router.api.generation.models import Models
from router.api.http.event_stream import ClientGone
from router.api.http.foreign_routes import advice_on
from router.api.http.generation_routes import GenerationRoutes, json_response
from router.api.http.middleware import (
    IgnoreTrailingSlash,
    RequireApiKey,
    RequireLocalName,
    ReturnRequestId,
)
from router.api.http.refusal import error_response, new_request_id
from router.api.openai.answers.schemas import Model
from router.api.openai.errors import REQUEST_ID_HEADER
from router.api.openai.openapi import openapi_document
from router.dispatch.sequence import CURRENT_REQUEST, RequestIdentity, TraceContext, clients_id_of
from router.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    NotImplementedHere,
    RouterError,
    Unavailable,
)

_Endpoint: TypeAlias = Callable[[Request, str], Awaitable[Response]]
"""Takes the request and its id."""
_OPERATIONS: Final = {"chatcmpl": "chat", "msg": "chat", "resp": "chat"}
"""gen_ai.operation.name by kind of request; text_completion for all others."""
_CLIENT_GONE_STATUS: Final = 499
"""nginx's status for a closed connection; used only in logs."""
_OTHER_KINDS: Final = ("/v1/embeddings", "/v1/rerank", "/rerank", "/score", "/pooling", "/classify")
"""Routes of other APIs, for models that do not generate text."""


def build_app(
    models: Models,
    *,
    metrics: CollectorRegistry,
    worker_targets: Callable[[], Sequence[str]],
    max_body_bytes: int,
    keys: ApiKeys | None = None,
    metrics_keys: ApiKeys | None = None,
    cors_origins: Sequence[str] = (),
    local_names_only: bool = False,
    routes: Sequence[Route] = (),
) -> Starlette:
    """An ASGI application over `models`; see HttpServer for the parameters.

    `local_names_only`: see RequireLocalName.
    """
    text = GenerationRoutes(models, max_body_bytes)
    cards = _ModelCards(models)
    operations = _Operations(models, metrics, worker_targets)
    app = Starlette(
        routes=[
            Route("/v1/completions", _answering(text.completions, "cmpl"), methods=["POST"]),
            Route("/v1/chat/completions", _answering(text.chat_completions, "chatcmpl"), methods=["POST"]),
            Route("/v1/responses", _answering(text.responses, "resp"), methods=["POST"]),
            Route("/v1/messages", _answering(text.messages, "msg"), methods=["POST"]),
            Route("/v1/messages/count_tokens", _answering(text.count_tokens), methods=["POST"]),
            Route("/v1/completions/render", _answering(text.render_completions, "cmpl"), methods=["POST"]),
            Route("/v1/chat/completions/render", _answering(text.render_chat, "chatcmpl"), methods=["POST"]),
            Route("/v1/sessions/{key:path}/release", _answering(text.release_session), methods=["POST"]),
            Route("/tokenize", _answering(text.tokenize), methods=["POST"]),
            Route("/detokenize", _answering(text.detokenize), methods=["POST"]),
            Route("/v1/models", _answering(cards.models), methods=["GET"]),
            Route("/v1/models/{name:path}", _answering(cards.model), methods=["GET"]),
            *(Route(path, _answering(cards.other_kinds), methods=["POST"]) for path in _OTHER_KINDS),
            Route("/live", _answering(operations.live), methods=["GET"]),
            Route("/ready", _answering(operations.ready), methods=["GET"]),
            Route("/health", _answering(operations.ready), methods=["GET"]),
            Route("/ping", _answering(operations.ready), methods=["GET"]),
            Route("/metrics", _answering(operations.metrics), methods=["GET"]),
            Route("/version", _answering(operations.version), methods=["GET"]),
            Route("/openapi.json", _answering(operations.openapi), methods=["GET"]),
            Route("/sd/workers", _answering(operations.workers), methods=["GET"]),
            *(_identified(route) for route in routes),
        ],
        exception_handlers={HTTPException: _no_such_route},
        middleware=[
            Middleware(ReturnRequestId),
            *([Middleware(RequireLocalName)] if local_names_only else ()),
            Middleware(IgnoreTrailingSlash),
            *_cors(cors_origins),
            Middleware(RequireApiKey, keys, metrics_keys),
        ],
    )
    app.router.redirect_slashes = False
    return app


def _identified(route: Route) -> Route:
    """`route`, whose endpoint does not take a request id, with an id in the response."""

    async def endpoint(request: Request, request_id: str) -> Response:
        response: Response = await route.endpoint(request)
        return response

    return Route(route.path, _answering(endpoint), methods=list(route.methods or ()))


def _cors(origins: Sequence[str]) -> list[Middleware]:
    """CORS is handled before authentication, because browsers send preflight requests without a key."""
    if not origins:
        return []
    return [
        Middleware(
            _Cors,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID_HEADER, "retry-after"],
        )
    ]


class _Cors(CORSMiddleware):
    """Responses to preflight requests have an id, too."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        response.headers[REQUEST_ID_HEADER] = new_request_id()
        return response


class _ModelCards:
    """The routes of the served models, and refusals of requests for other kinds of models."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def models(self, request: Request, request_id: str) -> Response:
        return json_response({"object": "list", "data": [_model_card(model) for model in self._models]})

    async def model(self, request: Request, request_id: str) -> Response:
        return json_response(_model_card(self._models.find(request.path_params["name"])))

    async def other_kinds(self, request: Request, request_id: str) -> Response:
        raise NotImplementedHere(
            f"{request.url.path} needs another kind of model; this server has {self._models.names}, for text."
        )


def _model_card(generation: Generation) -> Model:
    return {
        "id": generation.model.name,
        "object": "model",
        "created": generation.created,
        "owned_by": "baton",
        "max_model_len": generation.model.max_model_len,
        "default_sampling_params": generation.model.sampling_defaults.of_its_own(),
    }


class _Operations:
    """The routes for orchestrators and monitoring."""

    def __init__(
        self, models: Models, metrics: CollectorRegistry, worker_targets: Callable[[], Sequence[str]]
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._worker_targets = worker_targets

    async def live(self, request: Request, request_id: str) -> Response:
        """200 while the process runs."""
        return json_response({"status": "live"})

    async def ready(self, request: Request, request_id: str) -> Response:
        """200 while there are workers for requests, of the model in `?model=` or of any; else 503."""
        name = request.query_params.get("model")
        if not (self._models if name is None else self._models.find(name)).ready():
            raise Unavailable("Not ready: no workers, or shutting down.", code="not_ready", public=True)
        states = {one.model.name: "ready" if one.ready() else "not ready" for one in self._models}
        return json_response({"status": "ready", "models": states})

    async def metrics(self, request: Request, request_id: str) -> Response:
        return Response(generate_latest(self._metrics), headers={"content-type": CONTENT_TYPE_LATEST})

    async def version(self, request: Request, request_id: str) -> Response:
        return json_response({"version": VERSION})

    async def openapi(self, request: Request, request_id: str) -> Response:
        """With the bounds of the model in `?model=`, or of the first one."""
        name = request.query_params.get("model")
        generation = self._models.first if name is None else self._models.find(name)
        return json_response(openapi_document(generation.model.name, generation.bounds))

    async def workers(self, request: Request, request_id: str) -> Response:
        """Prometheus' http_sd: the targets of the workers' metrics."""
        return json_response([{"targets": list(self._worker_targets()), "labels": {}}])


def _answering(endpoint: _Endpoint, kind: str = "req") -> Callable[[Request], Awaitable[Response]]:
    """Wrap `endpoint`: assign request ids, which begin with `kind`, and turn errors into responses."""

    async def answer(request: Request) -> Response:
        request_id = new_request_id(kind)
        trace = TraceContext.of(request.headers.get("traceparent"))
        operation = _OPERATIONS.get(kind, "text_completion")
        clients_id = clients_id_of(request.headers.get(REQUEST_ID_HEADER))
        CURRENT_REQUEST.set(RequestIdentity(request_id, trace, operation, clients_id))
        try:
            response = await endpoint(request, request_id)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=_CLIENT_GONE_STATUS)
        except Exception as error:
            return error_response(as_router_error(error), request.url.path, request_id)
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
        served = [known.path for known in request.app.routes if isinstance(known, Route)]
        refusal = NotFound(f"There is no {route}.{advice_on(request.url.path, served)}")
    else:
        refusal = InvalidRequest(error.detail)
    response = error_response(refusal, request.url.path)
    response.headers.update(error.headers or {})
    return response
