"""Reads the body of a request after checking its type, encoding and size."""

from __future__ import annotations

import zlib
from typing import Final

from starlette.requests import Request

from router.errors import InvalidRequest, TooLarge, UnsupportedMediaType

_JSON: Final = "application/json"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""PowerShell and .NET write it before UTF-8."""
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""zlib's `wbits` by content coding."""


async def read_json_body(request: Request, limit: int) -> bytes:
    """At most `limit` bytes, decompressed, without a byte order mark.

    Raises UnsupportedMediaType unless the content type is JSON: browsers let any web page send some other
    types without a CORS preflight. Raises TooLarge as early as possible, before the body is in memory, and
    InvalidRequest for a damaged compressed body.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _JSON:
        raise UnsupportedMediaType(f"The body must be JSON, sent with `content-type: {_JSON}`.")
    coding = ",".join(request.headers.getlist("content-encoding")).strip().lower()
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    if coding in ("", "identity"):
        return (await _plain(request, limit)).removeprefix(_BYTE_ORDER_MARK)
    if coding not in _WINDOW_BITS:
        raise UnsupportedMediaType(
            f"content-encoding {coding[:100]!r} is not supported: use gzip or deflate."
        )
    return (await _inflated(request, coding, limit)).removeprefix(_BYTE_ORDER_MARK)


async def _plain(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


async def _inflated(request: Request, coding: str, limit: int) -> bytes:
    """`limit` bounds the compressed and the decompressed body; memory and time are bounded by it, too."""
    inflater = zlib.decompressobj(_WINDOW_BITS[coding])
    body = bytearray()
    received = 0
    try:
        async for piece in request.stream():
            received += len(piece)
            body += inflater.decompress(piece, limit + 1 - len(body))
            if max(received, len(body)) > limit:
                raise _too_large(limit)
    except zlib.error as error:
        raise _damaged(coding, str(error)) from None
    if not inflater.eof or inflater.unused_data:
        raise _damaged(coding, "bytes follow its end" if inflater.eof else "it is incomplete")
    return bytes(body)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request's body may have at most {limit} bytes.")


def _damaged(coding: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"The body cannot be decompressed as {coding}: {reason}.", code="invalid_encoding")
