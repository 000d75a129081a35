"""Step times of every worker: by its own steps, or by all workers' for work that it has not done lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from router.placement.step_time import PRIOR, StepTime, StepTimeFit, StepWork
from router.placement.view import WorkerId

_MEMORY: Final = 0.998
"""Forgetting factor per step; that of `StepTimeFit`."""
_ENOUGH: Final = 25.0
"""Samples of each kind, steps with decodes and steps with prompts, before a worker's own fit is used."""
_SPEED_WEIGHT: Final = 0.05
"""Of the newest step in a worker's speed."""


@dataclass(slots=True)
class _Worker:
    fit: StepTimeFit
    prompts: float = 0.0
    """Steps with prompts, those of long ago fading."""
    decodes: float = 0.0
    slowness: float = 1.0
    """Its times by those that the fit of all workers expects."""


class StepTimes:
    """A worker that only reads prompts never shows what decodes cost: its own fit says nothing about them.

    Until a worker has done enough of both, its times are those of all workers, scaled by how fast it is.
    Every method costs O(1).
    """

    def __init__(self, prior: StepTime = PRIOR) -> None:
        """`prior`: of all workers together."""
        self._all = StepTimeFit(prior)
        self._workers: dict[WorkerId, _Worker] = {}

    def add(self, worker_id: WorkerId, prior: StepTime) -> None:
        """A worker came up; one of the same id that was here before is forgotten."""
        self._workers[worker_id] = _Worker(StepTimeFit(prior))

    def remove(self, worker_id: WorkerId) -> None:
        self._workers.pop(worker_id, None)

    def observe(self, worker_id: WorkerId, work: StepWork, seconds: float) -> None:
        """How long the device took for a step. A sample of the steps is enough."""
        worker = self._workers[worker_id]
        worker.prompts = _MEMORY * worker.prompts + (work.prompt_tokens > 0)
        worker.decodes = _MEMORY * worker.decodes + (work.decodes > 0)
        worker.fit.observe(work, seconds)
        self._all.observe(work, seconds)
        usual = self._all.model.seconds(work)
        worker.slowness += _SPEED_WEIGHT * (min(max(seconds / usual, 0.1), 10.0) - worker.slowness)

    def of(self, worker_id: WorkerId) -> StepTime:
        worker = self._workers[worker_id]
        if min(worker.prompts, worker.decodes) >= _ENOUGH or len(self._workers) == 1:
            return worker.fit.model
        return self._all.model.scaled(worker.slowness)
