"""A client of the gRPC health service that never reads: it gives the server no window to write to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_SETTINGS, _HEADERS, _DATA = 4, 1, 0
_END_STREAM, _END_HEADERS = 1, 4
_NO_WINDOW = bytes([0, 4, 0, 0, 0, 0])
"""SETTINGS_INITIAL_WINDOW_SIZE = 0."""


@asynccontextmanager
async def unread_watch(port: int) -> AsyncIterator[None]:
    """Call `Watch`, take the server's settings and no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/grpc.health.v1.Health/Watch",
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    fields = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    writer.write(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + _frame(_SETTINGS, 0, 0, _NO_WINDOW)
        + _frame(_HEADERS, _END_HEADERS, 1, fields)
        + _frame(_DATA, _END_STREAM, 1, bytes(5))
    )
    await reader.readexactly(9)
    try:
        yield
    finally:
        writer.close()


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
