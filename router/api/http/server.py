"""Runs the HTTP frontend inside the caller's event loop.

```
tokenizer = Tokenizer.load(model.path, vocab_size=model.vocab_size)      # blocking; 0.1 to 1 s
generation = Generation(model, tokenizer, dispatcher)
http = HttpServer(Models([generation]), HttpConfig(host="0.0.0.0", port=30000), metrics=registry)
await http.start()              # OSError: the port is taken
...
await http.stop(grace_s=30)     # refuses new connections, lets running requests finish
```
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from common.background import supervised
from router.api.access import OPEN_ACCESS, Access
from router.api.apis import APIS
from router.api.endpoints.record import ApiEndpoint, Backend
from router.api.generation.models import ServedModels
from router.api.http.app import build_app
from router.api.http.protocol import BoundedProtocol, ConnectionsState
from rpc.tls import TlsFiles
from worker.network import is_loopback

_BACKLOG: Final = 2048
_KEEP_ALIVE_S: Final = 120.0
"""Above the idle timeouts of common proxies (AWS ALB 60 s, nginx 75 s): they close first."""
_WRITE_TIMEOUT_S: Final = 120.0
_TICK_S: Final = 1.0
_UNWIND_S: Final = 2.0
"""Time for cancelled requests to send their error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    host: str = "127.0.0.1"
    port: int = 30000
    """0: any free port; see HttpServer.port."""
    shared: bool = False
    """Whether other processes serve on the same port."""
    max_body_bytes: int = 4 << 20
    """Larger requests get 413 without being read into memory."""
    access: Access = OPEN_ACCESS
    keep_alive_s: float = _KEEP_ALIVE_S
    """How long idle connections are kept open."""
    write_timeout_s: float = _WRITE_TIMEOUT_S
    """How long a client may take no byte of what is sent to it."""


class HttpServer:
    """Serves the HTTP APIs of `models`. Does not handle signals."""

    def __init__(
        self,
        models: ServedModels,
        config: HttpConfig,
        *,
        metrics: CollectorRegistry,
        worker_targets: Callable[[], Sequence[str]] = tuple,
        endpoints: Sequence[ApiEndpoint] = (),
    ) -> None:
        """`metrics` is served at /metrics; `worker_targets()`, the workers' metrics endpoints, at
        /sd/workers.

        `worker_targets()` returns host:port of each worker. `endpoints` are served in addition to the APIs.
        """
        self._config = config
        self._models = models
        app = build_app(
            Backend(APIS, models, metrics, worker_targets, config.max_body_bytes),
            config.access,
            local_names_only=config.access.keys is None and is_loopback(config.host),
            endpoints=endpoints,
        )
        self._server = QuietServer(app, config.access.tls, keep_alive_s=config.keep_alive_s)
        self._serving: asyncio.Task[None] | None = None
        self.port = 0
        """The port that it listens on, after `start`."""

    async def start(self) -> None:
        """Return when connections are accepted. Raises OSError if the address cannot be bound."""
        listener = listen(self._config.host, self._config.port, shared=self._config.shared)
        # Connections inherit it. The kernel resets one whose unsent bytes do not shrink, also while a stream
        # is paused, and after the server has closed it.
        listener.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(self._config.write_timeout_s * 1e3)
        )
        self.port = listener.getsockname()[1]
        self._serving = supervised(self._server.serve(sockets=[listener]), "http-server")
        started = asyncio.create_task(self._server.accepting.wait())
        await asyncio.wait({self._serving, started}, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            started.cancel()
            await self._serving

    def wind_down(self) -> None:
        """Before a stop: keep serving, but make every response the last one of its connection."""
        self._server.wind_down()

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, give running requests `grace_s`, then end them with an error."""
        if self._serving is None:
            return
        self.wind_down()
        self._server.leave()
        if not await _done_within(self._serving, grace_s):
            self._models.fail_all()
            if not await _done_within(self._serving, _UNWIND_S):
                self._server.drop_connections()
        await self._serving


class QuietServer(uvicorn.Server):
    """uvicorn without signal handlers, and with an event that is set when it accepts connections."""

    def __init__(
        self, app: Starlette, tls: TlsFiles | None = None, *, keep_alive_s: float = _KEEP_ALIVE_S
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                loop="none",
                lifespan="off",
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]  # asyncio takes fractions
                ssl_context_factory=None if tls is None else lambda _config, _default: tls.context(),
            )
        )
        self.server_state: ConnectionsState = ConnectionsState()
        self.accepting = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """End `serve`."""
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """Renew the date of responses every second; uvicorn looks at `should_exit` ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _TICK_S)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    def wind_down(self) -> None:
        """Tell clients, in their next response, to close the connection."""
        self.server_state.winding_down = True
        for connection in self.server_state.connections:
            assert isinstance(connection, BoundedProtocol)
            connection.wind_down()

    def drop_connections(self) -> None:
        """Drop connections, to unblock writes to clients that do not read."""
        for connection in self.server_state.connections:
            if connection.transport is not None:
                connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def _done_within(task: asyncio.Task[None], seconds: float) -> bool:
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket for uvicorn, which would exit the process if binding failed.

    `shared`: other processes of this user may bind the port too, and each gets a part of the connections.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only if the protocol is given explicitly. With it, the first token on
    # a reused connection waits 40 ms for the client to acknowledge the headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
