"""Errors as HTTP responses, for all parts of the HTTP frontend."""

from __future__ import annotations

import secrets
from typing import Final

from starlette.responses import Response

from router.api.anthropic.errors import error_body as anthropic_error_body
from router.api.openai.errors import error_body, error_headers
from router.errors import RouterError

_OF_ANTHROPIC: Final = "/v1/messages"


def new_request_id(kind: str = "req") -> str:
    """A unique id that begins with `kind`."""
    return f"{kind}-{secrets.token_hex(12)}"


def error_response(error: RouterError, path: str, request_id: str | None = None) -> Response:
    """The response to an error, in the format of the API that `path` belongs to.

    Without `request_id`, a new id is used.
    """
    request_id = request_id or new_request_id()
    render = anthropic_error_body if path.startswith(_OF_ANTHROPIC) else error_body
    return Response(
        render(error, request_id),
        status_code=error.http_status,
        headers=error_headers(error, request_id),
    )
