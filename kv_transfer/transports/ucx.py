"""Shared by the transports over UCX: environment, addresses, and the state of a link to a peer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from common.ports import PortRange
from kv_transfer.errors import PeerUnreachable
from kv_transfer.ticket import Peer

SETTLE_S: Final = 1.0
"""A broken link is polled for this long before its end is reported: bytes buffered in the kernels are still
delivered meanwhile, into pages that are not reused yet."""


@dataclass(slots=True, eq=False)
class UcxLink:
    """The connection to one peer. A broken link is never repaired, but removed and replaced by a new one."""

    name: str
    broken: str = ""
    """Reason why the link is broken; empty if it works."""
    broken_at: float = 0.0
    peer_is_gone: bool = False

    def break_off(self, reason: str, now: float) -> None:
        """Mark the link as broken. The first reason is kept."""
        if not self.broken:
            self.broken, self.broken_at = reason, now

    def mark_peer_lost(self, now: float) -> None:
        """The peer's process has ended. Its data may still be in flight, so the settling time restarts."""
        self.break_off("its process has ended", now)
        self.peer_is_gone, self.broken_at = True, now

    def has_settled(self, now: float) -> bool:
        return bool(self.broken) and now >= self.broken_at + SETTLE_S

    def require_whole(self) -> None:
        if self.broken:
            raise PeerUnreachable(f"lost {self.name}: {self.broken}")


def configure(host: str, ports: PortRange | None = None) -> None:
    """Set the environment that UCX and NIXL read when they are loaded; variables set by the user are kept.

    UCX listens on the upper half of `ports`; the lower half is for the worker's own sockets.
    """
    # Errors are raised as exceptions; on a terminal, logs about disconnected peers would only alarm.
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    os.environ.setdefault("UCX_LOG_LEVEL", "fatal")
    if host == "127.0.0.1":
        os.environ.setdefault("UCX_NET_DEVICES", "lo")  # otherwise UCX stripes over all interfaces
    if ports is not None:
        os.environ.setdefault("UCX_TCP_PORT_RANGE", str(ports.halves()[1]))


def pack_metadata(lifeline: tuple[str, int], address: bytes) -> bytes:
    host, port = lifeline
    return f"{host} {port}\n".encode() + address


def lifeline_of(peer: Peer) -> tuple[str, int]:
    """Host and port of the peer's lifeline. Raises PeerUnreachable."""
    return unpack_metadata(peer)[0]


def unpack_metadata(peer: Peer) -> tuple[tuple[str, int], bytes]:
    """The peer's lifeline and its UCX address. Raises PeerUnreachable."""
    lifeline, _, address = peer.metadata.partition(b"\n")
    try:
        host, port = lifeline.decode().split()
        return (host, int(port)), address
    except ValueError as error:
        raise PeerUnreachable(f"{peer.name} uses another transport than this worker") from error
