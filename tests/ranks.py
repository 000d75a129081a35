"""Several ranks of one model as threads of this process: the real groups, over loopback."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from engine.parallel import RankGroup, RendezvousServer, join

__all__ = ["together"]

T = TypeVar("T")

PATIENCE_S = 20.0
CPU = torch.device("cpu")


def together(size: int, work: Callable[[RankGroup], T]) -> list[T]:
    """What `work` returns on each of `size` ranks, the leader's first. Raises the first error of any."""

    def run(rank: int) -> T:
        if rank == 0:
            group = rendezvous.join_as_first_rank(CPU, patience_s=PATIENCE_S, absent=str)
        else:
            group = join(rendezvous.place, rank, CPU, patience_s=PATIENCE_S)
        try:
            return work(group)
        finally:
            group.close()

    rendezvous = RendezvousServer(size)
    with ThreadPoolExecutor(size) as threads:
        return [future.result() for future in [threads.submit(run, rank) for rank in range(size)]]
