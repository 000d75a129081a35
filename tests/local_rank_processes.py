"""The other ranks of a worker as plain processes, for tests without Ray."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.process import BaseProcess

from engine.parallel import Rendezvous
from tests.processes import starting
from worker.config import WorkerConfig
from worker.tensor_parallel.rank_process import run_rank
from worker.tensor_parallel.rank_processes import RankProcesses


class LocalRankProcesses(RankProcesses):
    def __init__(self) -> None:
        super().__init__()
        self.processes: list[BaseProcess] = []

    def start(self, config: WorkerConfig, rendezvous: Rendezvous) -> None:
        context = starting()
        self.processes = [
            context.Process(target=run_rank, args=(config, rendezvous, rank), daemon=True)
            for rank in range(1, rendezvous.size)
        ]
        for rank, process in enumerate(self.processes, start=1):
            with _seeing_one_gpu(rank):
                process.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def end_all(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def _watch(self) -> None:
        (ended, *_) = connection.wait([process.sentinel for process in self.processes])
        (rank,) = [r for r, p in enumerate(self.processes, start=1) if p.sentinel == ended]
        self.lost(f"rank {rank} ended")


@contextmanager
def _seeing_one_gpu(index: int) -> Iterator[None]:
    """A process that is started meanwhile sees this GPU alone, as Ray would have it."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = before.split(",")[index] if before and "," in before else str(index)
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
