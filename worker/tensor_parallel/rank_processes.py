"""Interface to the processes of a worker's ranks other than 0."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING

from worker.config import WorkerConfig

if TYPE_CHECKING:
    from engine.parallel import Rendezvous


class RankProcesses(ABC):
    """Ranks run as long as rank 0. If one ends earlier, `end` has the reason, and the worker exits."""

    def __init__(self) -> None:
        self.end: Future[str] = Future()
        """Reason why a rank ended without `stop`; cancelled by `stop`."""

    @abstractmethod
    def start(self, config: WorkerConfig, rendezvous: Rendezvous) -> None:
        """Run `rank_process.run_rank` in a process for each rank but 0."""

    @abstractmethod
    def end_all(self) -> None:
        """Kill all processes."""

    def stop(self) -> None:
        self.end.cancel()
        self.end_all()

    def trouble(self) -> str:
        """Reason why a rank ended; empty while all run."""
        return self.end.result() if self.end.done() and not self.end.cancelled() else ""

    def lost(self, reason: str) -> None:
        """For subclasses: a process ended. May be called from any thread; only the first reason is kept."""
        with suppress(InvalidStateError):  # known already, or stopped
            self.end.set_result(reason)
