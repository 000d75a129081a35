"""Streamed answers over the messages of ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from router.api.endpoints.event_stream import STREAMED_BODY
from router.api.http.asgi_streams import AsgiStreams

Message = MutableMapping[str, Any]


class Server:
    """Takes the messages of an app, each when `reads` is set."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.parts.append(message.get("body", b""))

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError


async def test_what_is_written_comes_in_order_before_the_end_of_the_body() -> None:
    server = Server()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = scope["extensions"][STREAMED_BODY]
        await send({"type": "http.response.start"})
        for part in (b"a", b"b"):
            body.write(part)
        await asyncio.sleep(0)
        body.write(b"c")
        await send({"type": "http.response.body", "body": b"end"})

    await AsgiStreams(app)({"type": "http"}, server.receive, server.send)
    assert server.parts[0] == b""
    assert b"".join(server.parts) == b"abcend"
    assert server.parts[-1] == b"end"


async def test_a_slow_reader_pauses_the_answer_until_it_has_caught_up() -> None:
    server, calls = Server(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = scope["extensions"][STREAMED_BODY]
        await send({"type": "http.response.start"})
        server.reads.clear()
        body.follow(lambda: calls.append("pause"), lambda: calls.append("resume"))
        body.write(b"x" * (1 << 17))
        assert calls == ["resume", "pause"]
        server.reads.set()
        await send({"type": "http.response.body", "body": b""})

    await AsgiStreams(app)({"type": "http"}, server.receive, server.send)
    assert calls == ["resume", "pause", "resume"]
    assert len(b"".join(server.parts)) == 1 << 17
