"""A response of server-sent events: what is new in a run is written to the connection as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.api.disclosure import as_router_error
from router.api.generation.completion import OutputChunk
from router.api.generation.run import Run
from router.errors import RouterError


class ClientGone(Exception):
    """The client closed the connection."""


@asynccontextmanager
async def ends_with_client(receive: Receive) -> AsyncGenerator[None, None]:
    """Context that is cancelled, and raises ClientGone, when the client disconnects.

    The request's body must have been read, so that the next message can only be the disconnect.
    """
    work = asyncio.current_task()
    assert work is not None, "only a task can be cancelled"
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        work.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone or work.uncancel() > 0:
            raise
        raise ClientGone from None
    finally:
        watching.cancel()


STREAMED_BODY: Final = "baton.streamed_body"
"""Extension of ASGI: the `StreamedBody` in the scope of every request."""


class StreamedBody(Protocol):
    """Writes between `http.response.start` and the last `http.response.body`, past the layers of ASGI."""

    def write(self, part: bytes) -> None:
        """Write now; what the client does not read is buffered. Nothing is written after a disconnect."""
        ...

    def follow(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Call `pause` when the client reads too slowly, `resume` when it has caught up; one of them now."""
        ...


class Writer(Protocol):
    """Renders a run: as events, or whole after the last chunk."""

    def opening(self) -> bytes: ...

    def event(self, chunk: OutputChunk) -> bytes: ...

    def closing(self) -> bytes: ...

    def failure(self, error: RouterError) -> bytes: ...

    def add(self, chunk: OutputChunk) -> None:
        """Take the next chunk of a whole answer."""
        ...

    def body(self) -> bytes: ...


class EventStream(Response):
    """Create it with `of`. While the client does not read, the run is paused; a disconnect aborts it."""

    media_type = "text/event-stream"

    def __init__(self, run: Run, writer: Writer) -> None:
        # Tells proxies not to buffer.
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._run: Final = run
        self._writer: Final = writer
        self._early: Final[list[OutputChunk]] = []
        """Delivered before the body begins."""
        self._begun: Final = asyncio.Event()
        self._body: StreamedBody | None = None
        self._serving: Final = asyncio.create_task(run.serve(self._deliver))
        self._serving.add_done_callback(lambda _: self._begun.set())

    @classmethod
    async def of(cls, run: Run, writer: Writer) -> EventStream:
        """Wait for the first text before status 200 is sent, so that overload and failures are HTTP errors.

        Raises RouterError.
        """
        stream = cls(run, writer)
        try:
            await stream._begun.wait()
            if not stream._early:
                await stream._serving
        except BaseException:
            await stream._end()
            raise
        return stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with ends_with_client(receive):
                await send(
                    {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                )
                last = await self._write_events(scope["extensions"][STREAMED_BODY])
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except ClientGone:
            pass
        finally:
            await self._end()

    async def _write_events(self, body: StreamedBody) -> bytes:
        """Returns the last events. Never raises: after the status is sent, failures are events."""
        run, writer = self._run, self._writer
        try:
            body.write(writer.opening() + b"".join([writer.event(chunk) for chunk in self._early]))
            self._body = body
            body.follow(run.pause, run.resume)
            await self._serving
            return writer.closing()
        except Exception as error:
            return writer.failure(as_router_error(error))

    def _deliver(self, chunk: OutputChunk) -> None:
        if self._body is not None:
            self._body.write(self._writer.event(chunk))
        else:
            self._early.append(chunk)
            self._run.pause()
            self._begun.set()

    async def _end(self) -> None:
        self._serving.cancel()
        await asyncio.wait([self._serving])
