"""How the ranks of a worker find each other: at a place that the leader opens and tells the others.

All ranks of a worker share a machine, so they meet on its loopback interface: nobody else can come.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from engine.errors import RankLost
from engine.parallel.group import RankGroup
from engine.spec.shard import Shard

__all__ = ["Rendezvous", "RendezvousServer", "join"]

_LOOPBACK: Final = "127.0.0.1"
_CONNECT_S: Final = 60.0
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where, and for how many."""

    port: int
    size: int


class RendezvousServer:
    """The leader's side."""

    def __init__(self, size: int) -> None:
        listener = socket.create_server((_LOOPBACK, 0))
        self.place = Rendezvous(listener.getsockname()[1], size)
        # Given a listener of our own, because the store's would listen on every interface.
        self._store = TCPStore(
            _LOOPBACK,
            self.place.port,
            size,
            is_master=True,
            timeout=timedelta(seconds=_CONNECT_S),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def join_as_first_rank(
        self, device: torch.device, *, patience_s: float, absent: Callable[[], str]
    ) -> RankGroup:
        """The group, once all are here. `absent` says why somebody will never come; empty: not known yet.

        `patience_s`: how long a rank may keep the others waiting in the middle of a step. Raises RankLost.
        """
        others = [_arrival(rank) for rank in range(1, self.place.size)]
        while not self._store.check(others):
            if reason := absent():
                raise RankLost(reason)
            time.sleep(_LOOK_S)
        return RankGroup(self._store, Shard(0, self.place.size), device, patience_s=patience_s)


def join(rendezvous: Rendezvous, rank: int, device: torch.device, *, patience_s: float) -> RankGroup:
    """The group, for a rank that follows. Raises RankLost if the leader is not there any more."""
    try:
        store = TCPStore(
            _LOOPBACK,
            rendezvous.port,
            rendezvous.size,
            is_master=False,
            timeout=timedelta(seconds=_CONNECT_S),
        )
        store.set(_arrival(rank), "")
        return RankGroup(store, Shard(rank, rendezvous.size), device, patience_s=patience_s)
    except RuntimeError as error:  # what torch.distributed raises, of several kinds
        raise RankLost(f"rank {rank} does not find its leader: {error}") from error


def _arrival(rank: int) -> str:
    return f"rank-{rank}-is-here"
