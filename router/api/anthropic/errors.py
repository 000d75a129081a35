"""Errors in Anthropic's format."""

from __future__ import annotations

from typing import Final

import orjson

from router.api.disclosure import disclosed
from router.errors import RouterError

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: RouterError, request_id: str) -> bytes:
    """{"type": "error", "error": {...}}. Logs the details that it leaves out."""
    message = disclosed(error, request_id)
    return orjson.dumps(
        {
            "type": "error",
            "error": {"type": _TYPES.get(error.http_status, "invalid_request_error"), "message": message},
            "request_id": request_id,
        }
    )
