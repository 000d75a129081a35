"""Serves a worker's metrics over HTTP, with a bound on connections and on their idle time.

prometheus_client's own server starts a thread for each connection, without a limit and for as long as the
client keeps it open: idle connections alone would exhaust the worker's threads.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

_CONNECTIONS: Final = 16
"""Concurrent connections; further ones are closed at once."""
_IDLE_S: Final = 5.0
"""For each read of a request, and each write of its answer."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    longest_s = 10.0
    """For a whole connection."""
    request_queue_size = 128
    """Connections beyond socketserver's 5 that arrive at once would be tried again after a second or more."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._room = BoundedSemaphore(_CONNECTIONS)
        self._deadlines: dict[socket.socket, float] = {}
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            self._deadlines[request] = time.monotonic() + self.longest_s
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._deadlines[request]
            self._room.release()

    def service_actions(self) -> None:
        """Twice a second: end connections that are slow, whose reads and writes are each in time."""
        now = time.monotonic()
        for connection, deadline in list(self._deadlines.items()):
            if now > deadline:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def shutdown(self) -> None:
        """Stop serving. `serve_forever` looks for this twice a second, unless something wakes it."""
        self.socket.shutdown(socket.SHUT_RDWR)
        super().shutdown()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or sent no request in time, is not worth a traceback."""


class _Handler(WSGIRequestHandler):
    timeout = _IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        pass


def start_metrics_server(host: str, port: int, registry: CollectorRegistry) -> tuple[MetricsServer, Thread]:
    """Serve the registry on a daemon thread. Raises OSError if the port cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server_class = type("Server", (MetricsServer,), {"address_family": family})
    server: MetricsServer = make_server(
        host, port, make_wsgi_app(registry), server_class, handler_class=_Handler
    )
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    return server, thread
