"""Two hosts and a cable between them, as network namespaces of this machine. Needs root and iproute2."""

from __future__ import annotations

import ctypes
import os
import subprocess
from itertools import count
from types import TracebackType
from typing import Final

from scripts.cluster.namespaces import enter_network, ip, why_not

__all__ = ["TwoHosts", "enter", "why_not"]

_CLONE_NEWNS: Final = 0x00020000
_MS_REC_PRIVATE: Final = 0x4000 | 1 << 18
_MNT_DETACH: Final = 2
_NOWHERE: Final = "02:00:00:00:00:99"
_pairs = count()
_MACS: Final = ("02:00:00:00:00:01", "02:00:00:00:00:02")


class TwoHosts:
    """`addresses[i]` is that of host i, where a process enters by `enter(names[i])`."""

    def __init__(self) -> None:
        pair = next(_pairs)
        self.names = tuple(f"baton-{os.getpid()}-{pair}{host}" for host in "ab")
        self.addresses = ("10.213.0.1", "10.213.0.2")

    def __enter__(self) -> TwoHosts:
        for name in self.names:
            ip("netns", "add", name)
        first, second = self.names
        ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
        for name, address, mac in zip(self.names, self.addresses, _MACS, strict=True):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "cable", "address", mac, "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
        self.mend()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self.names:
            ip("netns", "del", name)

    def cut(self) -> None:
        """From now on everything between the two is lost, without a word to either."""
        self._send_to(_NOWHERE, _NOWHERE)

    def mend(self) -> None:
        self._send_to(_MACS[1], _MACS[0])

    def unsent(self, host: int) -> int:
        """Bytes that the kernel of a host still tries to bring to the other."""
        command = ["ip", "netns", "exec", self.names[host], "ss", "-Htan"]
        lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
        return sum(int(line.split()[2]) for line in lines if not line.startswith("LISTEN"))

    def _send_to(self, from_first: str, from_second: str) -> None:
        others = zip(self.names, reversed(self.addresses), (from_first, from_second), strict=True)
        for name, address, mac in others:
            ip("-n", name, "neigh", "replace", address, "lladdr", mac, "dev", "cable")


def enter(name: str) -> None:
    """Moves the calling thread to that host; to be called before any other thread is started."""
    enter_network(name)
    libc = ctypes.CDLL(None, use_errno=True)
    # UCX finds interfaces below /sys/class/net, which shows those of the namespace that mounted it.
    _check(libc.unshare(_CLONE_NEWNS))
    _check(libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None))
    _check(libc.umount2(b"/sys", _MNT_DETACH))
    _check(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None))


def _check(status: int) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
