"""A tiny OpenAI server with a model of one word, for tests of what talks to such servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class FakeServer:
    """Streams `max_tokens` words, at least `interval_s` apart."""

    interval_s: float = 0.0
    hold: Callable[[int], Awaitable[object]] | None = None
    """Awaited before each word, with the number of words of that answer sent so far."""
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Every request body that came."""
    most_at_once: int = 0
    _at_once: int = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "fake"}]})

    async def _complete(self, request: Request) -> Response:
        if request.headers.get("content-type") != "application/json":
            return JSONResponse({"error": {"message": "not JSON"}}, status_code=415)
        body = orjson.loads(await request.body())
        self.bodies.append(body)
        if body["model"] != "fake":
            return JSONResponse({"error": {"message": f"no model {body['model']}"}}, status_code=404)
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            for number in range(body["max_tokens"]):
                await asyncio.sleep(self.interval_s)
                if self.hold is not None:
                    await self.hold(number)
                choice = {"delta": {"content": " word"}} if "messages" in body else {"text": " word"}
                yield _event({"choices": [{"index": 0, **choice}]})
            usage = {"prompt_tokens": len(body.get("prompt", "")), "completion_tokens": body["max_tokens"]}
            yield _event({"choices": [], "usage": usage})
            yield "data: [DONE]\n\n"
        finally:
            self._at_once -= 1


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """Serve on a free port of 127.0.0.1 for the length of the block."""
    uvicorn_server = uvicorn.Server(uvicorn.Config(server.app(), port=0, log_level="error"))
    thread = threading.Thread(target=uvicorn_server.run, daemon=True)
    thread.start()
    while not uvicorn_server.started:
        thread.join(0.01)
    (socket,) = uvicorn_server.servers[0].sockets
    server.url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    try:
        yield server
    finally:
        uvicorn_server.should_exit = True
        thread.join(10)


def _event(body: dict[str, Any]) -> str:
    return f"data: {orjson.dumps(body).decode()}\n\n"
