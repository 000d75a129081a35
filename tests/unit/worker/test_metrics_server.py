"""The metrics port answers scrapes, whatever other connections to it do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge

from worker.process import metrics_server
from worker.process.metrics_server import start_metrics_server

HOST = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    registry = CollectorRegistry()
    Gauge("answer", "", registry=registry).set(42)
    server, thread = start_metrics_server(HOST, 0, registry)
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def scrape(port: int) -> bytes:
    with urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
        text: bytes = answer.read()
        return text


def test_a_scrape_gets_the_metrics(port: int) -> None:
    assert b"answer 42.0" in scrape(port)


def test_idle_connections_hold_a_bounded_number_of_threads_for_a_bounded_time(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.5)
    before = threading.active_count()
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection((HOST, port), timeout=10)) for _ in range(100)]
        refused = [connection for connection in idle[16:] if not connection.recv(1)]
        assert len(refused) == 84
        assert threading.active_count() - before <= 16
        assert [connection.recv(1) for connection in idle[:16]] == [b""] * 16
    assert b"answer 42.0" in scrape(port)


def test_connections_that_send_slowly_are_ended(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server.MetricsServer, "longest_s", 0.5)
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((HOST, port), timeout=10)) for _ in range(16)]
        while slow:
            for connection in list(slow):
                connection.settimeout(0.05)
                with suppress(TimeoutError):
                    if not connection.recv(1):
                        slow.remove(connection)
                        continue
                with suppress(OSError):
                    connection.send(b"G")
        assert b"answer 42.0" in scrape(port)
