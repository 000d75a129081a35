"""Interface between handoffs and transports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from kv_transfer.planner import Copy
from kv_transfer.ticket import Peer


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The bytes are in the peer's memory, and the local pages are no longer read."""

    write: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """Some bytes may have been written; no more will be, and the local pages are no longer read."""

    write: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message from a peer, as unchecked bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The peer's process has ended: no write in either direction is in flight or will ever be.

    Reported only with proof of that: a peer that is slow, stopped or unreachable is not lost."""

    name: str
    reason: str


TransportEvent: TypeAlias = WriteDone | WriteFailed | ReceivedMessage | PeerLost


class Transport(Protocol):
    """Moves bytes between the KV pools of workers. Makes progress only within these calls.

    Not thread-safe. No call waits for a peer. A write cannot be cancelled, since no transport guarantees
    that: it completes, fails, or ends with one of the two processes.
    """

    @property
    def name(self) -> str:
        """This worker's name among its peers."""

    @property
    def metadata(self) -> bytes:
        """Address of this worker, sent to peers as `Peer.metadata`."""

    def connect(self, peer: Peer) -> None:
        """Connect to a peer. No-op if connected. Raises PeerUnreachable."""

    def write(self, peer: Peer, copies: Sequence[Copy], message: bytes) -> int:
        """Start a write into the peer's pool; the peer gets `message` after the last byte.

        Returns the write number of the later WriteDone or WriteFailed. Raises PeerUnreachable.
        """

    def send(self, peer: Peer, message: bytes) -> None:
        """Send a message, not ordered with respect to writes in flight. Raises PeerUnreachable."""

    def is_local(self, peer: Peer) -> bool:
        """Whether the peer runs on this host. The kernel then reports the end of its process at once, and
        PeerLost does not depend on the network."""

    def forget(self, peer: Peer) -> None:
        """Abort all writes to a peer and stop watching it. It must not be connected again.

        The writes fail as if the peer were lost. The peer may still write to this worker: only `close`
        prevents that.
        """

    def poll(self) -> list[TransportEvent]:
        """Make progress; returns the events since the last call."""

    def close(self) -> None:
        """Close every connection and memory registration: afterwards neither this process nor a peer on
        another host reads or writes the pool, even if the peer has writes in flight. (Not with UCXX: see
        `worker.kv_pool_access.REOPENABLE`.)"""
