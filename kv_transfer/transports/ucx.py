"""What the transports over UCX have in common: its environment, addresses, and how a way to a peer ends."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from common.ports import PortRange
from kv_transfer.errors import PeerUnreachable
from kv_transfer.ticket import Peer

__all__ = ["SETTLE_S", "Link", "configure", "lifeline_of", "pack_metadata", "unpack_metadata"]

SETTLE_S: Final = 1.0
"""How long a broken link is polled before its end is reported: bytes that the kernels hold for it are
still delivered meanwhile, and land in pages that are not reused yet."""


@dataclass(slots=True, eq=False)
class Link:
    """The way to one peer. A broken one is never mended, but buried and then replaced by a new one."""

    name: str
    broken: str = ""
    """Why nothing can be started on it any more."""
    broken_at: float = 0.0
    peer_is_gone: bool = False

    def break_off(self, reason: str, now: float) -> None:
        """Of several reasons the first counts."""
        if not self.broken:
            self.broken, self.broken_at = reason, now

    def mark_peer_lost(self, now: float) -> None:
        """The peer's process is gone. Its data may still be in flight, so settling restarts."""
        self.break_off("its process is gone", now)
        self.peer_is_gone, self.broken_at = True, now

    def has_settled(self, now: float) -> bool:
        return bool(self.broken) and now >= self.broken_at + SETTLE_S

    def require_whole(self) -> None:
        if self.broken:
            raise PeerUnreachable(f"lost {self.name}: {self.broken}")


def configure(host: str, ports: PortRange | None = None) -> None:
    """Sets what UCX and NIXL read when they load, except where the user has set it.

    UCX listens within the upper half of `ports`, the lower one is for the worker's own sockets.
    """
    # Their errors reach us as exceptions; on a terminal they would only alarm about peers that left.
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    os.environ.setdefault("UCX_LOG_LEVEL", "fatal")
    if host == "127.0.0.1":
        os.environ.setdefault("UCX_NET_DEVICES", "lo")  # or UCX stripes over every interface
    if ports is not None:
        os.environ.setdefault("UCX_TCP_PORT_RANGE", str(ports.halves()[1]))


def pack_metadata(lifeline: tuple[str, int], address: bytes) -> bytes:
    host, port = lifeline
    return f"{host} {port}\n".encode() + address


def lifeline_of(peer: Peer) -> tuple[str, int]:
    """Host and port of the peer's lifeline. Raises PeerUnreachable."""
    return unpack_metadata(peer)[0]


def unpack_metadata(peer: Peer) -> tuple[tuple[str, int], bytes]:
    """The peer's lifeline and its address in UCX. Raises PeerUnreachable."""
    lifeline, _, address = peer.metadata.partition(b"\n")
    try:
        host, port = lifeline.decode().split()
        return (host, int(port)), address
    except ValueError as error:
        raise PeerUnreachable(f"{peer.name} uses another transport than this worker") from error
