"""Selects the address on which a worker listens."""

from __future__ import annotations

import socket
from ipaddress import ip_address, ip_network


class NoAddress(OSError):
    """This machine is not part of the network; the message says which."""


def own_address(network: str) -> str:
    """This machine's address in `network`, such as "10.1.0.0/16". Raises NoAddress."""
    wanted = ip_network(network)
    family = socket.AF_INET if wanted.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the kernel looks up which address it would send from.
            probe.connect((str(next(iter(wanted.hosts()))), 9))
        except OSError as error:
            raise NoAddress(f"this machine has no route to {network}: {error.strerror}") from None
        address: str = probe.getsockname()[0]
    if ip_address(address) not in wanted:
        raise NoAddress(f"this machine has no address in {network}; its source address for it is {address}")
    return address


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or "localhost"; other names are not resolved and count as no."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
