"""An API of the HTTP front end as one record, over which the app, refusals and documents loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from router.api.generation.models import ServedModels
from router.errors import RouterError


@dataclass(frozen=True, slots=True)
class Backend:
    """What endpoints answer from."""

    apis: Sequence[Api]
    models: ServedModels
    metrics: CollectorRegistry
    worker_targets: Callable[[], Sequence[str]]
    """Returns host:port of each worker's metrics."""
    max_body_bytes: int


Serve: TypeAlias = Callable[[Backend, Request], Awaitable[Response]]
"""Answers a request, whose id is its `state.id`. Raises RouterError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEndpoint:
    """A route, and its part of the OpenAPI document."""

    path: str
    """With Starlette's parameters, such as `{name:path}`."""
    serve: Serve
    method: str = "POST"
    id_prefix: str = "req"
    """Beginning of request ids."""
    operation: str = "text_completion"
    """gen_ai.operation.name of spans."""
    summary: str = ""
    answer: Any = None
    """Type of the JSON answer; None: the document leaves the endpoint out."""
    body: type[BaseModel] | None = None
    event: Any = None
    """Type, or union of the types, of the data of each event of a stream, except `[DONE]`."""
    changes_service: bool = False
    """It takes a key of --admin-key-file."""
    refusals: tuple[str, ...] = ()
    """Documented statuses besides 401 and 403. An endpoint with a body has them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    endpoints: Sequence[ApiEndpoint]
    error_body: Callable[[RouterError, str], bytes]
    """The JSON of an error, given the request's id."""
    error: Any
    """Its type."""
    vendor: str = ""
    """Vendor of the original, if there is one."""
    prefix: str = ""
    """Errors of all paths that begin with it have this API's format."""
    key_header: str | None = None
    """Header with the client's key alone. `authorization`, with a scheme, is understood everywhere."""
