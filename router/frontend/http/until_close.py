"""Responses to HTTP/1.0, which has no chunks: without a length, a response ends with its connection."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def until_close(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """`app` for one request of HTTP/1.0, whose `cycle` would send chunks (RFC 9112, 6.1, forbids it).

    uvicorn closes the connection after every response to HTTP/1.0.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        has_length = False

        async def send_unchunked(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name == b"content-length" for name, _ in message["headers"])
                cycle.chunked_encoding = None if has_length else False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unchunked)

    return answer
