"""A response of server-sent events, with minimal overhead per event."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.frontend.http.disconnect import ClientGone, ends_with_client

__all__ = ["EventStream"]


class EventStream(Response):
    """Sends events as they arrive. A slow client blocks `events`; a disconnected one closes it."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        """`events` yields whole events and must not raise."""
        # Tells proxies not to buffer.
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with ends_with_client(receive), aclosing(self._events) as events:
                await send(
                    {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                )
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGone:
            pass
