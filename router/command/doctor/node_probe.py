"""The checks of `router doctor` that run on each node of a cluster, in an actor there."""

from __future__ import annotations

import getpass
import os
import platform
import resource
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from common.ports import PortRange, bind_within
from router.command.doctor.end_process import EndProcess, WriteRate
from worker.network import own_address

_DISTRIBUTIONS: Final = ("baton-llm", "ray", "torch", "grpcio", "nixl-cu13")
_REACH_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    versions: Mapping[str, str]
    """Versions of Python and of the installed packages."""
    open_files: int
    locked_memory: int
    """Hard limits, in files and bytes; resource.RLIM_INFINITY for none."""
    shared_memory: int
    """Free bytes in /dev/shm."""
    has_infiniband: bool
    model_trouble: str
    """Why the model cannot be read here; empty if it can, or if it is not a path."""


class NodeProbe:
    """Methods are called one at a time; those of a link in the order peer, meet, link, close."""

    def __init__(self, node_address: str, network: str | None, ports: PortRange | None) -> None:
        self._node_address = node_address
        self._network = network
        self._ports = ports
        self._listeners: list[socket.socket] = []
        self._end: EndProcess | None = None

    def address(self) -> str:
        """The address on which workers of this node would listen.

        Raises NoAddress if none is in the network.
        """
        return self._node_address if self._network is None else own_address(self._network)

    def facts(self, model: str) -> NodeFacts:
        return NodeFacts(
            versions=versions_of(_DISTRIBUTIONS),
            open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            locked_memory=resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
            shared_memory=shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0,
            has_infiniband=os.path.isdir("/dev/infiniband"),
            model_trouble=_trouble(Path(model).expanduser()) if _is_path(model) else "",
        )

    def clock(self) -> float:
        """Seconds since the epoch, by this node's clock."""
        return time.time()

    def listen(self) -> tuple[str, int]:
        """Accept connections until the probe ends; returns address and port. Raises OSError, NoAddress."""
        lower = None if self._ports is None else self._ports.halves()[0]
        address = self.address()
        listener = bind_within(lower, lambda port: socket.create_server((address, port)))
        self._listeners.append(listener)
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        return address, listener.getsockname()[1]

    def reach(self, address: str, port: int) -> str:
        """Why this node cannot connect to that port; empty if it can."""
        try:
            socket.create_connection((address, port), _REACH_S).close()
        except OSError as error:
            return str(error)
        return ""

    def peer(self, role: str, device: str, patience_s: float) -> dict[str, Any]:
        """Start one end of a link; returns the connection data for the other end. Raises LinkFailed."""
        gpu = 0 if device.startswith("cuda") else None
        self._end = EndProcess(role, device, gpu=gpu, host=self.address(), ports=self._ports)
        return self._end.peer(time.monotonic() + patience_s)

    def meet(self, peer: dict[str, Any]) -> None:
        """Raises LinkFailed."""
        assert self._end is not None
        self._end.meet(peer)

    def link(self, patience_s: float) -> WriteRate:
        """The writer's measurement. Raises LinkFailed."""
        assert self._end is not None
        return self._end.link(time.monotonic() + patience_s)

    def close(self) -> None:
        """Close this end of the link."""
        if self._end is not None:
            self._end.close()
            self._end = None


def versions_of(distributions: Iterable[str]) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in distributions:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _is_path(model: str) -> bool:
    """Whether the name is a path, not an alias or a hub id."""
    return model.startswith(("/", "./", "../", "~"))


def _trouble(model: Path) -> str:
    if not model.exists():
        return f"{model} is not on this node"
    files = sorted(model.iterdir()) if model.is_dir() and os.access(model, os.R_OK) else [model]
    closed = [str(file) for file in files if not os.access(file, os.R_OK)]
    return f"{getpass.getuser()} cannot read {', '.join(closed)}" if closed else ""


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        connection.close()
