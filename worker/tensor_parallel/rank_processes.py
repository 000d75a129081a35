"""The ranks of a worker beside its leader, whoever runs their processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from engine.parallel import Rendezvous
from worker.config import WorkerConfig

__all__ = ["RankProcesses"]


class RankProcesses(ABC):
    """Ranks that follow. They live as long as their leader: when one ends, `end` says so."""

    def __init__(self) -> None:
        self.end: Future[str] = Future()
        """Why a rank ended that was not stopped; cancelled by `stop`."""

    @abstractmethod
    def start(self, config: WorkerConfig, rendezvous: Rendezvous) -> None:
        """Start a process for each rank but the leader's; it runs `rank_process.run_rank`."""

    @abstractmethod
    def end_all(self) -> None:
        """Make sure that no process is left."""

    def stop(self) -> None:
        self.end.cancel()
        self.end_all()

    def trouble(self) -> str:
        """Why the ranks will never be complete; empty: nothing is known against it."""
        return self.end.result() if self.end.done() and not self.end.cancelled() else ""

    def lost(self, reason: str) -> None:
        """For those who run the processes: one of them ended. From any thread; the first reason counts."""
        with suppress(InvalidStateError):  # known already, or stopped
            self.end.set_result(reason)
