"""Connected and fenced peers of a worker."""

from __future__ import annotations

from kv_transfer.errors import PeerFenced
from kv_transfer.ticket import Peer


class PeerBook:
    """Fences are permanent: an epoch is never reused, and takes a few bytes."""

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
