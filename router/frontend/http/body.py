"""Reads the body of a request after checking its type and size."""

from __future__ import annotations

from starlette.requests import Request

from router.errors import TooLarge, UnsupportedMediaType

__all__ = ["read_json_body"]

_JSON = "application/json"


async def read_json_body(request: Request, limit: int) -> bytes:
    """At most `limit` bytes.

    Raises UnsupportedMediaType unless the content type is JSON: browsers let any web page send some other
    types without a CORS preflight. Raises TooLarge as early as possible, before the body is in memory.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _JSON:
        raise UnsupportedMediaType(f"The body must be JSON, sent with `content-type: {_JSON}`.")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request's body may have at most {limit} bytes.")
