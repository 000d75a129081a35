"""The state that sender and receiver of a KV endpoint share: transport, identity, known peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kv_transfer.errors import PeerFenced, RightsRemain
from kv_transfer.handoff.records import NoSidecars, PageSidecars
from kv_transfer.integrity.digest import PageDigester, host_digester
from kv_transfer.layout import KVLayout
from kv_transfer.memory import PoolMemory
from kv_transfer.ticket import Peer
from kv_transfer.transports.base import Transport


class PeerBook:
    """Connected and fenced peers. Fences are permanent: an epoch is never reused, and takes a few bytes."""

    def __init__(self) -> None:
        self._connected: dict[str, Peer] = {}
        self._fenced: set[int] = set()

    def require_unfenced(self, peer: Peer) -> None:
        """Raises PeerFenced."""
        if peer.epoch in self._fenced:
            raise PeerFenced(
                f"{peer.name} was declared dead; only a restarted one, of a new epoch, is accepted"
            )

    def connected(self, peer: Peer) -> None:
        self._connected[peer.name] = peer

    def disconnected(self, name: str) -> None:
        self._connected.pop(name, None)

    def disconnected_from_all(self) -> None:
        self._connected.clear()

    def fence(self, epoch: int) -> list[Peer]:
        """Refuse this epoch from now on; returns its connections, one per name."""
        self._fenced.add(epoch)
        return [peer for peer in self._connected.values() if peer.epoch == epoch]

    def ignores(self, epoch: int) -> bool:
        """Whether messages of that epoch are dropped: it is fenced, and no connection to it is left."""
        return epoch in self._fenced and all(peer.epoch != epoch for peer in self._connected.values())


class KVPort:
    """A worker's KV pool, registered once with one transport. See `KVEndpoint`, which polls it."""

    def __init__(
        self,
        transport: Transport,
        memory: PoolMemory,
        layout: KVLayout,
        epoch: int,
        *,
        digester: PageDigester | None = None,
        reopen: Callable[[], Transport] | None = None,
        sidecars: PageSidecars | None = None,
    ) -> None:
        """`reopen` registers the same memory under another name, after `transport` was closed. None: this
        transport cannot be reopened.
        """
        self.transport = transport
        self.layout = layout
        self.sidecars: PageSidecars = sidecars or NoSidecars()
        self.digester = digester or host_digester(memory, layout)
        self.peer = Peer.of(transport.name, epoch, transport.metadata, memory, layout)
        """This worker, as its peers reach it."""
        self.peers = PeerBook()
        self.unexpected: Counter[str] = Counter()
        """Number of ignored messages by kind: late, duplicate, foreign or damaged."""
        self._memory = memory
        self._reopen = reopen

    def connect(self, peer: Peer) -> None:
        """Raises PeerUnreachable."""
        self.transport.connect(peer)
        self.peers.connected(peer)

    def reopen(self, reason: str) -> None:
        """Close the transport, so that no write can land, and open a new one under another name.

        Raises RightsRemain, and what the transport raises; the process must then exit.
        """
        if self._reopen is None:
            raise RightsRemain(f"{reason}, and may still write pages of this worker")
        self.transport.close()
        self.peers.disconnected_from_all()
        self.transport = self._reopen()
        self.peer = Peer.of(
            self.transport.name, self.peer.epoch, self.transport.metadata, self._memory, self.layout
        )
