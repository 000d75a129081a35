"""Checks that ports are free before a cluster is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["PortTaken", "check_free", "taking"]


class PortTaken(Exception):
    """The port cannot be bound; the message names the flag."""


def check_free(flag: str, host: str, port: int) -> None:
    """Raises PortTaken. Does not reserve the port: another program may still take it afterwards."""
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
    """Raises PortTaken if the port cannot be bound any more, minutes after `check_free`."""
    try:
        yield
    except OSError as error:
        raise PortTaken(
            f"{flag} was free when the start began, and cannot be used any more: {error};"
            " choose another, or stop the program that has it"
        ) from None
