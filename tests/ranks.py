"""Several ranks of one model as threads of this process: the real communicators, over loopback."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from engine.parallel import RendezvousServer, TorchCommunicator, join

T = TypeVar("T")

TIMEOUT_S = 20.0
CPU = torch.device("cpu")


def together(size: int, work: Callable[[TorchCommunicator], T]) -> list[T]:
    """What `work` returns on each of `size` ranks, that of rank 0 first. Raises the first error of any."""

    def run(rank: int) -> T:
        if rank == 0:
            communicator = rendezvous.join_as_first_rank(CPU, timeout_s=TIMEOUT_S, failure=str)
        else:
            communicator = join(rendezvous.place, rank, CPU, timeout_s=TIMEOUT_S)
        try:
            return work(communicator)
        finally:
            communicator.close()

    rendezvous = RendezvousServer(size)
    with ThreadPoolExecutor(size) as threads:
        return [future.result() for future in [threads.submit(run, rank) for rank in range(size)]]
