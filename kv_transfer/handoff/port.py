"""The state that sender and receiver of a KV endpoint share: transport, identity, known peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kv_transfer.errors import RightsRemain
from kv_transfer.integrity.digest import PageDigester, host_digester
from kv_transfer.layout import KVLayout
from kv_transfer.memory import PoolMemory
from kv_transfer.peer_book import PeerBook
from kv_transfer.ticket import Peer
from kv_transfer.transports.base import Transport


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
    ) -> None:
        """`reopen` registers the same memory under another name, after `transport` was closed. None: this
        transport cannot be reopened.
        """
        self.transport = transport
        self.layout = layout
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
