"""How the ranks of a worker find each other: a store on loopback, opened by rank 0.

All ranks of a worker share a machine, so no other machine can connect.
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
from engine.model_config.shard import Shard
from engine.parallel.torch_communicator import TorchCommunicator

_LOOPBACK: Final = "127.0.0.1"
_CONNECT_S: Final = 60.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The store's port, and the number of ranks."""

    port: int
    size: int


class RendezvousServer:
    """The store, in the process of rank 0."""

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
        self, device: torch.device, *, timeout_s: float, failure: Callable[[], str]
    ) -> TorchCommunicator:
        """Wait for all other ranks. `failure()`: why a rank will never join; empty while none has failed.

        `timeout_s`: how long one rank may wait for another in the middle of a step. Raises RankLost.
        """
        others = [_key(rank) for rank in range(1, self.place.size)]
        while not self._store.check(others):
            if reason := failure():
                raise RankLost(reason)
            time.sleep(_POLL_S)
        return TorchCommunicator(self._store, Shard(0, self.place.size), device, timeout_s=timeout_s)


def join(rendezvous: Rendezvous, rank: int, device: torch.device, *, timeout_s: float) -> TorchCommunicator:
    """On ranks other than 0. `timeout_s` as in `join_as_first_rank`. Raises RankLost if rank 0 has ended."""
    try:
        store = TCPStore(
            _LOOPBACK,
            rendezvous.port,
            rendezvous.size,
            is_master=False,
            timeout=timedelta(seconds=_CONNECT_S),
        )
        store.set(_key(rank), "")
        return TorchCommunicator(store, Shard(rank, rendezvous.size), device, timeout_s=timeout_s)
    except RuntimeError as error:  # what torch.distributed raises, of several kinds
        raise RankLost(f"rank {rank} cannot reach rank 0: {error}") from error


def _key(rank: int) -> str:
    return f"rank-{rank}-is-here"
