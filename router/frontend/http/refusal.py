"""An error as an HTTP response, wherever in the HTTP frontend it is met."""

from __future__ import annotations

import secrets
from typing import Final

from starlette.responses import Response

from router.errors import RouterError
from router.frontend.anthropic.errors import error_body as anthropic_error_body
from router.frontend.openai.errors import error_body, error_headers

__all__ = ["error_response", "new_request_id"]

_OF_ANTHROPIC: Final = "/v1/messages"


def new_request_id(kind: str = "req") -> str:
    """Unique; begins with `kind`."""
    return f"{kind}-{secrets.token_hex(12)}"


def error_response(error: RouterError, path: str, request_id: str | None = None) -> Response:
    """With the error's status, in the words of the API that `path` is of.

    Without `request_id` an id is drawn.
    """
    request_id = request_id or new_request_id()
    render = anthropic_error_body if path.startswith(_OF_ANTHROPIC) else error_body
    return Response(
        render(error, request_id),
        status_code=error.http_status,
        headers=error_headers(error, request_id),
    )
