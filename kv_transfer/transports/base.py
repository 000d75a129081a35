"""What the handoff needs of a transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from kv_transfer.planner import Copy
from kv_transfer.ticket import Peer

__all__ = ["Arrival", "PeerLost", "Transport", "TransportEvent", "WriteDone", "WriteFailed"]


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The bytes are in the peer's memory, and ours are no longer read."""

    write: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """Some of the bytes may be in the peer's memory, none will follow, and ours are no longer read."""

    write: int
    reason: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message from a peer, as unchecked bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The peer's process is gone: no write between us, in either direction, is in flight or will ever be.

    Only ever known, never presumed: a peer that is slow, stopped or unreachable is not lost."""

    name: str
    reason: str


TransportEvent: TypeAlias = WriteDone | WriteFailed | Arrival | PeerLost


class Transport(Protocol):
    """Moves bytes between the KV pools of workers. Owns no thread: nothing happens outside these calls.

    One thread at a time makes calls. None of them waits for a peer. There is no way to cancel a write,
    since no network is known to offer one that can be relied on: a write ends by itself, or with a process.
    """

    @property
    def name(self) -> str:
        """This worker's name among its peers."""

    @property
    def metadata(self) -> bytes:
        """What a peer needs to reach this worker; travels in `Peer.metadata`."""

    def connect(self, peer: Peer) -> None:
        """Makes `peer` reachable; a connected one stays as it is. Raises PeerUnreachable."""

    def write(self, peer: Peer, copies: Sequence[Copy], message: bytes) -> int:
        """Starts writing our bytes into the peer's pool; `message` arrives there after the last byte.

        Returns the number that WriteDone or WriteFailed will carry. Raises PeerUnreachable.
        """

    def send(self, peer: Peer, message: bytes) -> None:
        """Sends a message on its own; unordered against writes in flight. Raises PeerUnreachable."""

    def is_local(self, peer: Peer) -> bool:
        """Whether the peer runs on this host. One kernel has both processes then, and PeerLost comes as soon
        as the peer's ends, whatever happens to networks and other hosts."""

    def forget(self, peer: Peer) -> None:
        """Gives up every write to a peer, and watches it no more. It is not to be connected again.

        The writes end as if the peer were gone. What the peer itself can write here is another matter: only
        `close` ends that.
        """

    def poll(self) -> list[TransportEvent]:
        """Makes progress, and returns what happened since the last call."""

    def close(self) -> None:
        """Ends every connection and registration: no memory of ours is read or written afterwards, by this
        process or by a peer on another host, whatever the peer still has under way. (Not with UCXX: see
        `worker.kv_endpoint`.)"""
