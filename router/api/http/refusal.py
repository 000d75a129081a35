"""Errors as HTTP responses, for all parts of the HTTP frontend."""

from __future__ import annotations

import secrets

from starlette.responses import Response

from router.api.apis import api_of
from router.api.openai.errors import error_headers
from router.errors import RouterError


def new_request_id(prefix: str = "req") -> str:
    """A unique id that begins with `prefix`."""
    return f"{prefix}-{secrets.token_hex(12)}"


def error_response(error: RouterError, path: str, request_id: str | None = None) -> Response:
    """The response to an error, in the format of the API that `path` belongs to.

    Without `request_id`, a new id is used.
    """
    request_id = request_id or new_request_id()
    return Response(
        api_of(path).error_body(error, request_id),
        status_code=error.http_status,
        headers=error_headers(error, request_id),
    )
