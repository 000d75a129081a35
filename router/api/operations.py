"""Endpoints for orchestrators and monitoring, and the other ones that are Baton's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Literal

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from common.version import VERSION
from router.api.endpoints.kinds import reads
from router.api.endpoints.openapi import openapi_document
from router.api.endpoints.record import Api, Backend
from router.api.openai.answers.schemas import Closed, Error
from router.api.openai.errors import error_body
from router.errors import Unavailable


class Status(Closed):
    status: str


class Readiness(Closed):
    status: str
    models: dict[str, str]


class Version(Closed):
    version: str


class ReleasedSession(Closed):
    object: Literal["session"]
    key: str
    released: Literal[True]


def _ready(backend: Backend, request: Request) -> Readiness:
    """200 while there are workers for requests, of the model in `?model=` or of any; else 503."""
    models, name = backend.models, request.query_params.get("model")
    if not (models if name is None else models.find(name)).ready():
        raise Unavailable("Not ready: no workers, or shutting down.", code="not_ready", public=True)
    states = {one.model.name: "ready" if one.ready() else "not ready" for one in models}
    return {"status": "ready", "models": states}


def _metrics(backend: Backend, request: Request) -> Response:
    return Response(generate_latest(backend.metrics), headers={"content-type": CONTENT_TYPE_LATEST})


def _openapi(backend: Backend, request: Request) -> Any:
    """With the bounds of the model in `?model=`, or of the first one, and the names of its adapters."""
    models, name = backend.models, request.query_params.get("model")
    generation = models.first if name is None else models.find(name)
    bounds = replace(generation.bounds, model_names=generation.names)
    return openapi_document(backend.apis, generation.model.name, bounds)


def _workers(backend: Backend, request: Request) -> Any:
    """Prometheus' http_sd: the targets of the workers' metrics."""
    return [{"targets": list(backend.worker_targets()), "labels": {}}]


def _release(backend: Backend, request: Request) -> ReleasedSession:
    key = request.path_params["key"]
    backend.models.release_session(key)
    return {"object": "session", "key": key, "released": True}


_RELEASED: Final = "End what requests with this prompt_cache_key have retained."

OPERATIONS: Final[Api] = Api(
    error_body=error_body,
    error=Error,
    endpoints=(
        reads("/live", lambda *_: {"status": "live"}, Status, "The process answers."),
        reads("/ready", _ready, Readiness, "A request sent now would find workers.", "503"),
        reads("/health", _ready, Readiness, "The same as /ready.", "503"),
        reads("/ping", _ready, Readiness, "The same as /ready.", "503"),
        reads("/version", lambda *_: {"version": VERSION}, Version, "Version of Baton."),
        reads("/metrics", _metrics),
        reads("/openapi.json", _openapi),
        reads("/sd/workers", _workers),
        reads("/v1/sessions/{key:path}/release", _release, ReleasedSession, _RELEASED, method="POST"),
    ),
)
