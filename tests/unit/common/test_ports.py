"""Ports from a fixed range."""

from __future__ import annotations

import socket

import pytest

from common.ports import NoPortLeft, PortRange, bind_within
from kv_transfer.transports.lifeline import Lifeline

HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    return socket.create_server((HOST, port))


def free_range() -> PortRange:
    """Free a moment ago."""
    with listen(0) as probe:
        low = min(probe.getsockname()[1], 60_000)
    return PortRange(low, low + 63)


@pytest.mark.parametrize("text", ["", "1", "x-y", "80-90", "2000-1000", "65000-70000", "5000-5003"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"LOW-HIGH|use "):
        PortRange.parse(text)


def test_halves_have_no_port_in_common() -> None:
    lower, upper = PortRange.parse("11000-11099").halves()
    assert (str(lower), str(upper)) == ("11000-11049", "11050-11099")


def test_sockets_take_one_free_port_after_the_other() -> None:
    ports = free_range()
    with bind_within(ports, listen) as first, bind_within(ports, listen) as second:
        taken = [s.getsockname()[1] for s in (first, second)]
    assert taken == sorted(set(taken))
    assert set(taken) <= set(ports)


def test_the_error_of_a_full_range_names_the_flag_to_change() -> None:
    with listen(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NoPortLeft, match="--worker-ports"):
            bind_within(PortRange(port, port), listen)


def test_another_error_is_not_a_taken_port() -> None:
    with pytest.raises(OSError, match="assign"):
        bind_within(free_range(), lambda port: socket.create_server(("192.0.2.77", port)))


def test_a_lifeline_keeps_to_its_ports() -> None:
    ports = free_range()
    lifeline = Lifeline("p-1", HOST, ports)
    assert lifeline.address[1] in ports
    lifeline.close()
