"""Errors in OpenAI's format."""

from __future__ import annotations

import math
from typing import Final

import orjson

from router.api.disclosure import disclosed
from router.errors import RouterError

REQUEST_ID_HEADER: Final = "x-request-id"
"""OpenAI's header; its client shows it with every error."""


def error_body(error: RouterError, request_id: str) -> bytes:
    """{"error": {...}}, which the openai package maps to typed exceptions.

    Logs the details that it leaves out.
    """
    return orjson.dumps(
        {
            "error": {
                "message": disclosed(error, request_id),
                "type": error.openai_type,
                "param": error.param,
                "code": error.code,
            }
        }
    )


def error_headers(error: RouterError, request_id: str) -> dict[str, str]:
    """Headers of the response; the openai package honours Retry-After."""
    headers = {"content-type": "application/json", REQUEST_ID_HEADER: request_id}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    return headers


def error_event(error: RouterError, request_id: str) -> bytes:
    """The last event of a stream that failed after its start."""
    return b"data: " + error_body(error, request_id) + b"\n\n"
