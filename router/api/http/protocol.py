"""HTTP/1.1 with limits of the time and memory that a client can use before its request is complete.

uvicorn limits the pause between two requests, but neither the time in which a request must arrive nor the
length of its headers; a few thousand slow clients could occupy every socket of the process.

Closing an idle connection races with the client's next request, which is then lost. Responses therefore
announce the timeout (`Keep-Alive: timeout=`), connections stay open a little longer, and responses say
`Connection: close` whenever possible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from router.api.endpoints.event_stream import STREAMED_BODY
from router.api.http.refusal import error_response
from router.errors import HeadersTooLarge, InvalidRequest, RouterError, TooSlow


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


_HEAD_BYTES: Final = 64 << 10
_ARRIVAL_S: Final = 30.0
_ANNOUNCED_EARLIER_S: Final = 5.0
"""Margin for the delays of the network and of clients that honour the announced timeout."""
_LINGER_S: Final = 2.0
"""Time for a refused client to read the response: closing while it still sends would reset the connection."""
_LINGER_BYTES: Final = 1 << 20
_PROBE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Clients ignore it at any time before the response (RFC 9110, 15.2)."""
_PROBE_S: Final = 0.25


class ConnectionsState(ServerState):
    """uvicorn's state, shared by all connections of a server."""

    def __init__(self) -> None:
        super().__init__()
        self.winding_down = False
        """Whether every response is the last one of its connection."""


class _Body:
    """The `StreamedBody` of a connection."""

    def __init__(self, protocol: BoundedProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol: Final = protocol
        self._cycle: Final = cycle
        self.pause: Callable[[], None] = lambda: None
        self.resume: Callable[[], None] = lambda: None

    def write(self, part: bytes) -> None:
        if part and not self._cycle.disconnected:
            framed = b"%x\r\n%b\r\n" % (len(part), part) if self._cycle.chunked_encoding else part
            self._cycle.transport.write(framed)

    def follow(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self.pause, self.resume = pause, resume
        self._protocol.body = self
        (pause if self._protocol.flow.write_paused else resume)()


class _Reading(Enum):
    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a request that has not completely arrived within `arrival_s` of its first byte."""

    arrival_s = _ARRIVAL_S
    announced_earlier_s = _ANNOUNCED_EARLIER_S
    server_state: ConnectionsState

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keep_alive_header: Final = (b"keep-alive", b"timeout=%d" % self.timeout_keep_alive)
        self.timeout_keep_alive += self.announced_earlier_s  # type: ignore[assignment]  # any number will do
        self._reading = _Reading.NOTHING
        self._head_bytes = 0
        """Bytes of a request whose headers are not complete yet."""
        self._deadline: asyncio.TimerHandle | None = None
        self._refusal: RouterError | None = None
        """Why the parser was stopped, other than by a parse error."""
        self.body: _Body | None = None
        """Body of the current response, if it is streamed."""
        self._hung_up = False
        self._dropped_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_next_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self._hung_up:
            self._drop(data)
            return
        self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        self._after_parsing()

    def _parse(self, data: bytes) -> None:
        """Like uvicorn's `data_received`, which logs a warning for each client that does not speak HTTP."""
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(data[upgrade.args[0] :])
        except HttpParserError:
            self._refuse(self._refusal or InvalidRequest("This is not HTTP."))

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """Parse the head again without its Upgrade, which a server may ignore (RFC 9110, 7.8).

        httptools would take a body for the new protocol, and Java's HttpClient asks for h2c with a body.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(InvalidRequest("This server is no proxy."))
            return
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self._parse(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio takes a bool
        """The client has closed its side; True: it still gets the response.

        A client that only half-closes does so right after its request. One that closes later has gone, and so
        has a client of HTTP/1.0 or TLS, where the two cannot be told apart.
        """
        waits = self._is_answering() and self._reading is _Reading.NOTHING and not self._hung_up
        if not waits or self._has_begun() or self.scheme == "https" or self.scope["http_version"] == "1.0":
            return False
        self.cycle.keep_alive = False
        self._probe()
        return True

    def _has_begun(self) -> bool:
        return bool(self.cycle.response_started) and not self.pipeline

    def _probe(self) -> None:
        """Write to a client that has closed its side: if it has gone, the second write fails."""
        if self._is_answering() and not self._has_begun():
            if not self.pipeline:
                self.transport.write(_PROBE)
            self._deadline = self.loop.call_later(_PROBE_S, self._probe)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading = _Reading.HEAD
        self._await_arrival()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > _HEAD_BYTES:
            self._refusal = _head_too_large()
            raise self._refusal  # stops the parser
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and (hosts > 1 or self.parser.get_http_version() == "1.1"):
            self._refusal = InvalidRequest(
                f"The request has {hosts} Host headers; it needs one.", param="host"
            )
            raise self._refusal
        self._head_bytes = 0
        super().on_headers_complete()
        self._reading = _Reading.BODY
        extensions: dict[str, Any] = {STREAMED_BODY: _Body(self, self.cycle)}
        self.scope["extensions"] = extensions
        if self.server_state.winding_down:
            self.cycle.keep_alive = False
        if self.cycle.keep_alive:
            self.cycle.default_headers = [*self.cycle.default_headers, self._keep_alive_header]

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._head_bytes = 0
        self._reading = _Reading.NOTHING
        self._disarm()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = until_close(app, cycle)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.body = None
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.body is not None:
            self.body.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.body is not None:
            self.body.resume()

    def wind_down(self) -> None:
        """Make the response in progress, if any, the last of this connection."""
        if self._is_answering():
            self.cycle.keep_alive = False

    def _after_parsing(self) -> None:
        if self._hung_up:
            return
        if self._head_bytes > _HEAD_BYTES:
            self._refuse(_head_too_large())
        elif self._reading is _Reading.NOTHING and not self._is_answering():
            self._await_next_request()  # an empty line was received

    def _await_next_request(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _await_arrival(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self.arrival_s, self._give_up)

    def _give_up(self) -> None:
        if self.pipeline:
            # A pipelined request waits for the previous response, and is not read meanwhile.
            self._await_arrival()
        else:
            self._refuse(TooSlow(f"The request did not arrive within {self.arrival_s:g} s."))

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: RouterError) -> None:
        """Respond to the current request with `error`, stop reading, and close the connection."""
        cycle = self.cycle
        if self._reading is _Reading.BODY:
            if self.pipeline or (cycle.response_started and not cycle.response_complete):
                self.transport.abort()  # other responses are in progress on this connection
                return
            answered = cycle.response_complete
            cycle.disconnected = True
            cycle.message_event.set()
        elif self._is_answering():
            # A refusal would be mixed into the response to an earlier request: close after that one instead.
            cycle.keep_alive = False
            self._disarm()
            self._hung_up = True
            self.flow.pause_reading()
            return
        else:
            answered = False
        if not answered:
            self.transport.write(self._rendered(error))
        self._hang_up()

    def _hang_up(self) -> None:
        """Close when the client has closed its side after reading the response, or after a timeout."""
        self._hung_up = True
        self._disarm()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline = self.loop.call_later(_LINGER_S, self.transport.abort)

    def _drop(self, data: bytes) -> None:
        self._dropped_bytes += len(data)
        if self._dropped_bytes > _LINGER_BYTES:
            self.transport.abort()

    def _rendered(self, error: RouterError) -> bytes:
        response = error_response(error, path="")
        headers = [*self.server_state.default_headers, *response.raw_headers, (b"connection", b"close")]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return STATUS_LINE[response.status_code] + lines + b"\r\n" + bytes(response.body)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _head_too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"The request line and the headers may have at most {_HEAD_BYTES} bytes.")
