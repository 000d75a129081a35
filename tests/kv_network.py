"""A network of KV transports that does nothing by itself: a test decides what arrives, when, and whether."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kv_transfer import Peer
from kv_transfer.errors import PeerUnreachable
from kv_transfer.planner import Copy
from kv_transfer.transports.base import PeerLost, ReceivedMessage, TransportEvent, WriteDone, WriteFailed
from tests.kv_support import Pool


@dataclass(slots=True, eq=False)
class InFlightWrite:
    number: int
    source: NetworkTransport
    target: str
    copies: list[Copy]
    """What has not landed yet."""
    message: bytes


@dataclass(slots=True, eq=False)
class InFlightMessage:
    target: str
    data: bytes


@dataclass(slots=True, eq=False)
class Network:
    members: dict[str, NetworkTransport] = field(default_factory=dict)
    """Everybody who ever joined; the dead ones too."""
    gone: set[str] = field(default_factory=set)
    """The dead whose death is known."""
    closed: set[str] = field(default_factory=set)
    """Transports that living workers have closed: nothing lands through them any more."""
    writes: list[InFlightWrite] = field(default_factory=list)
    messages: list[InFlightMessage] = field(default_factory=list)
    unnoticed: list[str] | None = None
    """Where names of closed transports are put until the test lets them be noticed. None: that is at once."""

    def land(self, write: InFlightWrite, piece: int = 0, flip_bit: bool = False) -> None:
        """A piece of a write reaches the target, read from the source's memory as it is now."""
        assert write.target not in self.closed, "a write landed through a transport that was closed"
        copy = write.copies.pop(piece % len(write.copies))
        data = write.source.memory[copy.local : copy.local + copy.length].copy()
        if flip_bit:
            data[0] ^= 1
        self.members[write.target].memory[copy.remote : copy.remote + copy.length] = data

    def complete(self, write: InFlightWrite) -> None:
        """Or fail it, if its target has closed."""
        if write.target in self.closed:
            self.fail(write)
            return
        while write.copies:
            self.land(write)
        self.writes.remove(write)
        self.messages.append(InFlightMessage(write.target, write.message))
        write.source.inbox.append(WriteDone(write.number))

    def fail(self, write: InFlightWrite) -> None:
        self.writes.remove(write)
        write.source.inbox.append(WriteFailed(write.number, "the test says so"))

    def deliver(self, message: InFlightMessage) -> None:
        self.messages.remove(message)
        self.members[message.target].inbox.append(ReceivedMessage(message.data))

    def disconnect(self) -> None:
        """Every link breaks, though everybody lives. Writes under way fail."""
        for write in list(self.writes):
            self.fail(write)
        for member in self.members.values():
            member.connected.clear()

    def close(self, name: str) -> None:
        """Writes to and from it will never end well; who wrote to it learns of that like of a crash."""
        self.closed.add(name)
        for write in [w for w in self.writes if w.target == name]:
            self.fail(write)
        self.writes = [w for w in self.writes if w.source.name != name]
        if self.unnoticed is None:
            self.notice(name)
        else:
            self.unnoticed.append(name)

    def notice(self, name: str) -> None:
        """The survivors learn of a crash, when nothing between them and the dead is in flight any more."""
        self.gone.add(name)
        self.writes = [w for w in self.writes if name not in (w.source.name, w.target)]
        for member in self.members.values():
            if name in member.watched:
                member.watched.discard(name)
                member.connected.discard(name)
                member.inbox.append(PeerLost(name, "crashed"))


class NetworkTransport:
    def __init__(
        self, name: str, pool: Pool, network: Network, neighbours: frozenset[str] = frozenset()
    ) -> None:
        """`neighbours`: names of peers on the same host."""
        self._name = name
        self._neighbours = neighbours
        self._network = network
        self._next_write = 0
        self.memory: np.ndarray = pool.bytes.reshape(-1)
        self.inbox: list[TransportEvent] = []
        self.connected: set[str] = set()
        self.watched: set[str] = set()
        """Every peer that was ever connected and has not been reported lost."""
        network.members[name] = self

    @property
    def name(self) -> str:
        return self._name

    @property
    def metadata(self) -> bytes:
        return b""

    def connect(self, peer: Peer) -> None:
        # Whether it still lives may be found out later, as on a real network.
        if peer.name in self._network.gone:
            raise PeerUnreachable(f"{peer.name} is gone")
        self.connected.add(peer.name)
        self.watched.add(peer.name)

    def write(self, peer: Peer, copies: Sequence[Copy], message: bytes) -> int:
        self._require_connected(peer)
        self._next_write += 1
        pieces = [piece for copy in copies for piece in _by_page(copy, peer.page_bytes)]
        self._network.writes.append(InFlightWrite(self._next_write, self, peer.name, pieces, message))
        return self._next_write

    def send(self, peer: Peer, message: bytes) -> None:
        self._require_connected(peer)
        self._network.messages.append(InFlightMessage(peer.name, message))

    def is_local(self, peer: Peer) -> bool:
        return peer.name in self._neighbours

    def forget(self, peer: Peer) -> None:
        """Its writes stay under way: whether they land is for the other side to prevent."""
        self.connected.discard(peer.name)
        self.watched.discard(peer.name)

    def poll(self) -> list[TransportEvent]:
        events, self.inbox = self.inbox, []
        return events

    def close(self) -> None:
        self.inbox.clear()
        self._network.close(self._name)

    def _require_connected(self, peer: Peer) -> None:
        if peer.name not in self.connected:
            raise PeerUnreachable(f"{peer.name} is not connected")


def _by_page(copy: Copy, page_bytes: int) -> list[Copy]:
    return [
        Copy(copy.local + offset, copy.remote + offset, min(page_bytes, copy.length - offset))
        for offset in range(0, copy.length, page_bytes)
    ]
