"""Ports in use by another process: at the start, and when they are bound."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from router.api.http.server import listen
from router.command.preflight import PortTaken, check_free, taking


@pytest.fixture
def taken() -> Iterator[int]:
    listener = listen("127.0.0.1", 0)
    listener.listen()
    yield listener.getsockname()[1]
    listener.close()


def test_a_port_that_is_taken_is_named_with_its_flag(taken: int) -> None:
    with pytest.raises(PortTaken, match=f"--http-port {taken} on 127.0.0.1 cannot be used") as refusal:
        check_free("--http-port", "127.0.0.1", taken)
    assert "`router stop" in str(refusal.value)
    [free] = re.findall(r"--http-port (\d+) is free", str(refusal.value))
    check_free("--http-port", "127.0.0.1", int(free))
    check_free("--admin-port", "127.0.0.1", int(free) + 1)


def test_a_port_that_is_free_stays_free() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check_free("--http-port", "127.0.0.1", port)
    listen("127.0.0.1", port).close()


def test_a_port_that_is_lost_during_the_start_is_named_too(taken: int) -> None:
    with pytest.raises(PortTaken, match="--http-port was free when the start began"), taking("--http-port"):
        listen("127.0.0.1", taken)
