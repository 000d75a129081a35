"""Network namespaces of this machine. Needs root and iproute2."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from typing import Final

_CLONE_NEWNET: Final = 0x40000000


def why_not() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("ss") is None:
        return "network namespaces need iproute2"
    probe = f"baton-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode != 0:
        return "this machine allows no network namespaces"
    ip("netns", "del", probe)
    return ""


def enter_network(name: str) -> None:
    """The calling thread opens its sockets in that namespace from now on. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}") as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def ip(*arguments: str) -> None:
    """iproute2's command. Raises CalledProcessError."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
