"""Streamed answers behind any server of ASGI, which does not give the app its socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.api.endpoints.event_stream import STREAMED_BODY

_HIGH_BYTES: Final = 1 << 16
"""Unsent bytes above which the reader is slow."""


class AsgiStreams:
    """Middleware with a `StreamedBody`, for servers other than BoundedProtocol's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(send)
        extensions = {**scope.get("extensions", {}), STREAMED_BODY: body}
        try:
            await self._app({**scope, "extensions": extensions}, receive, body.send)
        finally:
            body.close()


class _Body:
    """A `StreamedBody` over the `send` of ASGI."""

    def __init__(self, send: Send) -> None:
        self._send: Final = send
        self._unsent = bytearray()
        self._sending: asyncio.Task[None] | None = None
        self._is_paused = False
        self._pause: Callable[[], None] = lambda: None
        self._resume: Callable[[], None] = lambda: None

    def write(self, part: bytes) -> None:
        self._unsent += part
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._flush())
        if len(self._unsent) > _HIGH_BYTES and not self._is_paused:
            self._is_paused = True
            self._pause()

    def follow(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause, self._resume = pause, resume
        (pause if self._is_paused else resume)()

    async def send(self, message: Message) -> None:
        """A message of the app, after all that was written before."""
        if self._sending is not None:
            await self._sending
        await self._send(message)

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    async def _flush(self) -> None:
        while self._unsent:
            part = bytes(self._unsent)
            self._unsent.clear()
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        if self._is_paused:
            self._is_paused = False
            self._resume()
