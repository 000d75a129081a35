"""Which address a worker listens on."""

from __future__ import annotations

import pytest

from worker.network import NoAddress, is_loopback, own_address


@pytest.mark.parametrize("network", ["127.0.0.0/8", "127.0.0.1/32", "127.0.0.0/31"])
def test_the_address_of_this_machine_in_a_network_is_found(network: str) -> None:
    assert is_loopback(own_address(network))


def test_a_network_that_this_machine_is_not_part_of_is_named() -> None:
    with pytest.raises(NoAddress, match=r"203\.0\.113\.0/24"):
        own_address("203.0.113.0/24")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("node-7", False),
        ("", False),
    ],
)
def test_loopback_is_what_other_machines_cannot_reach(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
