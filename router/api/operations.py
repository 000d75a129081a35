"""Endpoints for orchestrators and monitoring, and the other ones that are Baton's own."""

from __future__ import annotations

from typing import Final, Literal

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from common.version import VERSION
from router.api.endpoints.kinds import gets, json_response
from router.api.endpoints.openapi import openapi_document
from router.api.endpoints.record import Api, Endpoint, Service
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


async def _live(service: Service, request: Request) -> Response:
    """200 while the process runs."""
    return json_response({"status": "live"})


async def _ready(service: Service, request: Request) -> Response:
    """200 while there are workers for requests, of the model in `?model=` or of any; else 503."""
    models, name = service.models, request.query_params.get("model")
    if not (models if name is None else models.find(name)).ready():
        raise Unavailable("Not ready: no workers, or shutting down.", code="not_ready", public=True)
    states = {one.model.name: "ready" if one.ready() else "not ready" for one in models}
    return json_response({"status": "ready", "models": states})


async def _metrics(service: Service, request: Request) -> Response:
    return Response(generate_latest(service.metrics), headers={"content-type": CONTENT_TYPE_LATEST})


async def _version(service: Service, request: Request) -> Response:
    return json_response({"version": VERSION})


async def _openapi(service: Service, request: Request) -> Response:
    """With the bounds of the model in `?model=`, or of the first one."""
    models, name = service.models, request.query_params.get("model")
    generation = models.first if name is None else models.find(name)
    return json_response(openapi_document(service.apis, generation.model.name, generation.bounds))


async def _workers(service: Service, request: Request) -> Response:
    """Prometheus' http_sd: the targets of the workers' metrics."""
    return json_response([{"targets": list(service.worker_targets()), "labels": {}}])


async def _release_session(service: Service, request: Request) -> Response:
    key = request.path_params["key"]
    service.models.release_session(key)
    return json_response({"object": "session", "key": key, "released": True})


OPERATIONS: Final[Api] = Api(
    error_body=error_body,
    error=Error,
    endpoints=(
        gets("/live", _live, Status, "The process answers."),
        gets("/ready", _ready, Readiness, "A request sent now would find workers.", "503"),
        gets("/health", _ready, Readiness, "The same as /ready.", "503"),
        gets("/ping", _ready, Readiness, "The same as /ready.", "503"),
        gets("/version", _version, Version, "Of Baton."),
        gets("/metrics", _metrics),
        gets("/openapi.json", _openapi),
        gets("/sd/workers", _workers),
        Endpoint(
            path="/v1/sessions/{key:path}/release",
            serve=_release_session,
            answer=ReleasedSession,
            summary="End what requests with this prompt_cache_key have retained.",
        ),
    ),
)
