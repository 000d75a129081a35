"""Errors in OpenAI's words, as its clients expect them."""

from __future__ import annotations

import math
from typing import Final

import orjson

from router.errors import RouterError

__all__ = ["error_body", "error_event", "error_headers"]

_MEDIA_TYPE: Final = {"content-type": "application/json"}


def error_body(error: RouterError) -> bytes:
    """{"error": {...}}, from which the openai package makes its typed exceptions."""
    return orjson.dumps(
        {
            "error": {
                "message": error.message,
                "type": error.openai_type,
                "param": error.param,
                "code": error.code,
            }
        }
    )


def error_headers(error: RouterError) -> dict[str, str]:
    """Headers of the response; the openai package honours Retry-After."""
    if error.retry_after_s is None:
        return dict(_MEDIA_TYPE)
    return _MEDIA_TYPE | {"retry-after": str(math.ceil(error.retry_after_s))}


def error_event(error: RouterError) -> bytes:
    """The last event of a stream that failed after it had begun."""
    return b"data: " + error_body(error) + b"\n\n"
