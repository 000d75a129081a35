"""HTTP/1.1 with bounds on what a client may take before it has asked for anything: time, and memory.

uvicorn bounds the pause between two requests, but neither the time for which a request may trickle in nor
the length of its headers; a few thousand slow clients would be enough to hold every socket of the process.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["BoundedProtocol"]

_HEAD_BYTES: Final = 64 << 10
_ARRIVAL_S: Final = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose next request has not arrived, body and all, within `arrival_s`."""

    arrival_s = _ARRIVAL_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        """Of a request whose headers are not complete yet."""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:  # not the first request of this connection
            self._await_request()

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._disarm()
        super().on_message_complete()

    def _await_request(self) -> None:
        self._deadline = self.loop.call_later(self.arrival_s, self._give_up)

    def _give_up(self) -> None:
        if self.pipeline:
            # It waits behind the answer to the one before, and is not read meanwhile.
            self._await_request()
        else:
            self.transport.abort()

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
