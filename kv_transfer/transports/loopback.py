"""Transport between workers in one process, by memory copies. For tests and single-process clusters."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.errors import PeerUnreachable
from kv_transfer.memory import PoolMemory
from kv_transfer.planner import Copy
from kv_transfer.ticket import Peer
from kv_transfer.transports.base import PeerLost, ReceivedMessage, TransportEvent, WriteDone, WriteFailed


@dataclass(slots=True)
class LoopbackNetwork:
    """The workers of a loopback network. Threads may share one."""

    members: dict[str, LoopbackTransport] = field(default_factory=dict)


_PROCESS = LoopbackNetwork()


@dataclass(frozen=True, slots=True)
class _Write:
    number: int
    peer: str
    copies: tuple[Copy, ...]
    message: bytes


class LoopbackTransport:
    """A write stays in flight until the writer polls, like on a network.

    What other transports cannot do fails here too: a write without a connection, one beyond the memory that
    is registered, or a connection to a peer that was forgotten.
    """

    def __init__(self, name: str, memory: PoolMemory, network: LoopbackNetwork = _PROCESS) -> None:
        if name in network.members:
            raise ValueError(f"the network already has a worker named {name}")
        self._name = name
        self._bytes = memory.host_bytes()
        self._network = network
        self._connected: set[str] = set()
        self._forgotten: set[str] = set()
        self._in_flight: deque[_Write] = deque()
        self._inbox: deque[bytes] = deque()  # filled by the peers' threads
        self._next_write = 0
        network.members[name] = self

    @property
    def name(self) -> str:
        return self._name

    @property
    def metadata(self) -> bytes:
        return b"loopback"

    def connect(self, peer: Peer) -> None:
        self._member(peer.name)
        if peer.name in self._forgotten:
            raise PeerUnreachable(f"{peer.name} was given up")
        self._connected.add(peer.name)

    def write(self, peer: Peer, copies: Sequence[Copy], message: bytes) -> int:
        target = self._linked(peer.name)
        for copy in copies:
            inside = 0 <= copy.local <= len(self._bytes) - copy.length
            if not (inside and 0 <= copy.remote <= len(target._bytes) - copy.length):
                raise PeerUnreachable(f"{copy} is not within the memory here and of {peer.name}")
        self._next_write += 1
        self._in_flight.append(_Write(self._next_write, peer.name, tuple(copies), message))
        return self._next_write

    def send(self, peer: Peer, message: bytes) -> None:
        self._linked(peer.name)._inbox.append(message)

    def is_local(self, peer: Peer) -> bool:
        return True

    def forget(self, peer: Peer) -> None:
        self._connected.discard(peer.name)
        self._forgotten.add(peer.name)

    def poll(self) -> list[TransportEvent]:
        events: list[TransportEvent] = []
        while self._in_flight:
            events.append(self._complete(self._in_flight.popleft()))
        while self._inbox:
            events.append(ReceivedMessage(self._inbox.popleft()))
        for name in [name for name in self._connected if name not in self._network.members]:
            self._connected.discard(name)
            events.append(PeerLost(name, "it was closed"))
        return events

    def close(self) -> None:
        self._network.members.pop(self._name, None)
        self._in_flight.clear()
        self._connected.clear()

    def _member(self, name: str) -> LoopbackTransport:
        member = self._network.members.get(name)
        if member is None:
            raise PeerUnreachable(
                f"{name} is not in this process, as --kv-transport loopback requires; use nixl"
            )
        return member

    def _linked(self, name: str) -> LoopbackTransport:
        if name not in self._connected:
            raise PeerUnreachable(f"{name} is not connected")
        return self._member(name)

    def _complete(self, write: _Write) -> TransportEvent:
        target = self._network.members.get(write.peer)
        if target is None or write.peer in self._forgotten:
            return WriteFailed(write.number, f"{write.peer} was closed")
        for copy in write.copies:
            target._bytes[copy.remote : copy.remote + copy.length] = self._bytes[
                copy.local : copy.local + copy.length
            ]
        target._inbox.append(write.message)
        return WriteDone(write.number)
