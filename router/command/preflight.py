"""Checks of this process before a cluster is started: its packages, its limit of open files, its ports."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("common", "decode_worker", "engine", "kv_transfer", "prefill_worker", "rpc", "worker")
"""Packages that serving imports; `router plan` alone needs `simulator`."""
LOOPBACK: Final = "127.0.0.1"
_TRIED: Final = 200
_LAST_PORT: Final = 65535
_ROOT: Final = Path(__file__).resolve().parents[2]


def shadowed_packages(find: Callable[[str], ModuleSpec | None] = find_spec) -> Iterator[str]:
    """One message for each package that would be imported from another place. Imports nothing."""
    for name in _PACKAGES:
        spec = find(name)
        origin = None if spec is None else spec.origin
        if origin is None or Path(origin).resolve().parents[1] != _ROOT:
            yield (
                f"package {name!r} is found at {origin}, not in {_ROOT}: another distribution has one of"
                " this name; install Baton in a virtual environment of its own"
            )


def allow_many_connections() -> None:
    """Raise the soft limit of open files, usually 1024, to the hard limit, which needs no privilege."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class PortTaken(Exception):
    """The port cannot be bound; the message names the flag."""


def check_free(flag: str, host: str, port: int) -> None:
    """Raises PortTaken. Does not reserve the port: another program may still take it afterwards."""
    try:
        _bind(host, port)
    except OSError as error:
        others = (other for other in range(port + 2, min(port + _TRIED, _LAST_PORT), 2))
        free = next((other for other in others if _are_free(host, other, other + 1)), None)
        advice = "choose another" if free is None else f"{flag} {free} is free"
        raise PortTaken(
            f"{flag} {port} on {host} cannot be used: {error.strerror}; {advice}, or stop the program"
            " that has it (`router stop --admin-port PORT`, if it is a router)"
        ) from None


def _bind(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def _are_free(host: str, *ports: int) -> bool:
    try:
        for port in ports:
            _bind(host, port)
    except OSError:
        return False
    return True


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
