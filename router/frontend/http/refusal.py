"""An error as an HTTP response, wherever in the HTTP frontend it is met."""

from __future__ import annotations

import secrets

from starlette.responses import Response

from router.errors import RouterError
from router.frontend.openai.errors import error_body, error_headers

__all__ = ["error_response", "new_request_id"]


def new_request_id(kind: str = "req") -> str:
    """Unique; begins with `kind`."""
    return f"{kind}-{secrets.token_hex(12)}"


def error_response(error: RouterError, request_id: str | None = None) -> Response:
    """With the error's status. Without `request_id` an id is drawn."""
    request_id = request_id or new_request_id()
    return Response(
        error_body(error, request_id),
        status_code=error.http_status,
        headers=error_headers(error, request_id),
    )
