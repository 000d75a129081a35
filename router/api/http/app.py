"""The HTTP frontend: an ASGI application over all APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from router.api.access import Access
from router.api.disclosure import as_router_error
from router.api.endpoints.event_stream import ClientGone
from router.api.endpoints.record import ApiEndpoint, Backend
from router.api.http.foreign_routes import advice_on, advice_on_field
from router.api.http.middleware import (
    IgnoreTrailingSlash,
    RequireApiKey,
    RequireLocalName,
    ReturnRequestId,
)
from router.api.http.refusal import error_response, new_request_id
from router.api.openai.errors import REQUEST_ID_HEADER
from router.dispatch.sequence import CURRENT_REQUEST, RequestIdentity, TraceContext, clients_id_of
from router.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RouterError,
)

_CLIENT_GONE_STATUS: Final = 499
"""nginx's status for a closed connection; used only in logs."""


def build_app(
    backend: Backend,
    access: Access,
    *,
    local_names_only: bool = False,
    endpoints: Sequence[ApiEndpoint] = (),
) -> Starlette:
    """An ASGI application; `endpoints` are served in addition to those of the APIs.

    `local_names_only`: see RequireLocalName.
    """
    served = [endpoint for api in backend.apis for endpoint in api.endpoints]
    app = Starlette(
        routes=[_route(backend, endpoint) for endpoint in (*served, *endpoints)],
        exception_handlers={HTTPException: _no_such_route},
        middleware=[
            Middleware(ReturnRequestId),
            *([Middleware(RequireLocalName)] if local_names_only else ()),
            Middleware(IgnoreTrailingSlash),
            *_cors(access.cors_origins),
            Middleware(RequireApiKey, access.keys, access.metrics_keys, access.admin_keys, rl=access.rl),
        ],
    )
    app.router.redirect_slashes = False
    return app


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


def _route(backend: Backend, endpoint: ApiEndpoint) -> Route:
    """Assigns request ids, and turns errors into responses."""

    async def answer(request: Request) -> Response:
        request_id = request.state.id = new_request_id(endpoint.id_prefix)
        trace = TraceContext.of(request.headers.get("traceparent"))
        clients_id = clients_id_of(request.headers.get(REQUEST_ID_HEADER))
        CURRENT_REQUEST.set(RequestIdentity(request_id, trace, endpoint.operation, clients_id))
        try:
            response = await endpoint.serve(backend, request)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=_CLIENT_GONE_STATUS)
        except Exception as error:
            refusal = as_router_error(error)
            if refusal.code == "unknown_parameter":
                refusal.message += advice_on_field(refusal.param or "", backend.apis)
            return error_response(refusal, request.url.path, request_id)
        response.headers[REQUEST_ID_HEADER] = request_id
        return response

    return Route(endpoint.path, answer, methods=[endpoint.method])


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
