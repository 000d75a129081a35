"""Statistics of the workers, polled only while the page is viewed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from router.workers.registry import Registry
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.status import RpcError

_FRESH_S: Final = 0.5
_PATIENCE_S: Final = 1.0
_SAMPLES: Final = 6


@dataclass(slots=True)
class WorkerFigures:
    """The latest answers of one incarnation of a worker, with their times."""

    epoch: int
    samples: deque[tuple[float, worker_pb2.WorkerStats]] = field(
        default_factory=lambda: deque(maxlen=_SAMPLES)
    )

    @property
    def latest(self) -> worker_pb2.WorkerStats:
        return self.samples[-1][1]

    def rate(self, counter: str) -> float | None:
        """The rate of a field of WorkerStats per second; None until there are two answers."""
        if len(self.samples) < 2:
            return None
        (began, first), (ended, last) = self.samples[0], self.samples[-1]
        return float(getattr(last, counter) - getattr(first, counter)) / (ended - began)


class WorkerStatsReader:
    """Reads the statistics of workers. Answers are cached for half a second, for any number of readers."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._figures: dict[str, WorkerFigures] = {}
        self._read_at = -_FRESH_S
        self._reading = asyncio.Lock()

    async def read(self) -> dict[str, WorkerFigures]:
        """Figures by worker id. A worker that does not answer within a second keeps its latest figures."""
        async with self._reading:
            if self._clock() - self._read_at >= _FRESH_S:
                found = await asyncio.gather(*map(self._ask, self._registry.sessions()))
                self._figures = {name: figures for name, figures in found if figures is not None}
                self._read_at = self._clock()
            return self._figures

    async def _ask(self, session: WorkerSession) -> tuple[str, WorkerFigures | None]:
        figures = self._figures.get(session.worker_id)
        if figures is not None and figures.epoch != session.info.epoch:
            figures = None
        try:
            stats = await session.stats(_PATIENCE_S)
        except RpcError:
            return session.worker_id, figures  # the worker's state shows the failure
        figures = figures or WorkerFigures(session.info.epoch)
        figures.samples.append((self._clock(), stats))
        return session.worker_id, figures
