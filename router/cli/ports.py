"""Whether a port can be had, asked before a cluster is raised for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["PortTaken", "check_free", "taking"]


class PortTaken(Exception):
    """Another program listens there; the message names the flag."""


def check_free(flag: str, host: str, port: int) -> None:
    """Raises PortTaken. The port is free again afterwards, so that it can still be lost to somebody."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortTaken(
                f"{flag} {port} on {host} cannot be used: {error.strerror};"
                " choose another, or stop the program that has it"
            ) from None


@contextmanager
def taking(flag: str) -> Iterator[None]:
    """Raises PortTaken where the port cannot be had after all, minutes after it was free."""
    try:
        yield
    except OSError as error:
        raise PortTaken(
            f"{flag} was free when the start began, and cannot be used any more: {error};"
            " choose another, or stop the program that has it"
        ) from None
