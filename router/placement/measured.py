"""What is measured of workers and of the links between them: step times and bandwidth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from router.placement.step_time import NO_DRAFTS, PRIOR, Drafting, StepTime, StepTimeFit, StepWork
from router.placement.view import LinkView, WorkerId

_FADING: Final = 0.9
"""Weight of a handoff relative to the next one."""
_TELLING_BYTES: Final = 16_000_000
"""The rate of smaller handoffs is dominated by latency, not by bandwidth."""


class _Rate:
    """Decaying sums of bytes and seconds of handoffs."""

    def __init__(self) -> None:
        self._bytes = self._seconds = 0.0

    def observe(self, num_bytes: float, seconds: float) -> None:
        self._bytes = _FADING * self._bytes + num_bytes
        self._seconds = _FADING * self._seconds + seconds

    @property
    def bytes_per_s(self) -> float:
        return self._bytes / self._seconds


class TransferRates:
    """Links with measured bandwidth. Every method costs O(1), except `forget`: O(links)."""

    def __init__(self, prior: LinkView) -> None:
        """`prior`: assumed before anything is measured; its latency is kept."""
        self.link = prior
        """The link of pairs without measured handoffs."""
        self.links: dict[tuple[WorkerId, WorkerId], LinkView] = {}
        self._prior = prior
        self._all = _Rate()
        self._rates: dict[tuple[WorkerId, WorkerId], _Rate] = {}

    def observe(self, source: WorkerId, destination: WorkerId, num_bytes: int, seconds: float) -> None:
        """Writes of `num_bytes` were in progress for `seconds`."""
        if num_bytes < _TELLING_BYTES or seconds <= 0:
            return
        pair = source, destination
        rate = self._rates.setdefault(pair, _Rate())
        for known in (self._all, rate):
            known.observe(num_bytes, seconds)
        self.link = replace(self._prior, bytes_per_s=self._all.bytes_per_s)
        self.links[pair] = replace(self._prior, bytes_per_s=rate.bytes_per_s)

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone."""
        for pair in [pair for pair in self._rates if worker in pair]:
            del self._rates[pair], self.links[pair]


_MEMORY: Final = 0.998
"""Forgetting factor per step; that of `StepTimeFit`."""
_ENOUGH: Final = 25.0
"""Samples of each kind, steps with decodes and steps with prompts, before a worker's own fit is used."""
_DRAFTS_MEMORY: Final = 0.95
"""Weight of a step relative to the next one in what drafts yield, which changes with the requests."""
_SPEED_WEIGHT: Final = 0.05
"""Weight of the newest step in a worker's speed."""


@dataclass(slots=True)
class _Worker:
    fit: StepTimeFit
    prompts: float = 0.0
    """Steps with prompts, those of long ago fading."""
    decodes: float = 0.0
    slowness: float = 1.0
    """Its times by those that the fit of all workers expects."""
    answers: float = 0.0
    rows: float = 0.0
    tokens: float = 0.0
    """Tokens of answers per step, with older steps fading."""


class StepTimes:
    """A worker that only reads prompts never shows what decodes cost: its own fit says nothing about them.

    Until a worker has done enough of both, its times are those of all workers, scaled by how fast it is.
    Every method costs O(1).
    """

    def __init__(self) -> None:
        self._all = StepTimeFit(PRIOR)
        self._workers: dict[WorkerId, _Worker] = {}

    def add(self, worker_id: WorkerId, prior: StepTime) -> None:
        """A worker came up; one of the same id that was here before is forgotten."""
        self._workers[worker_id] = _Worker(StepTimeFit(prior))

    def remove(self, worker_id: WorkerId) -> None:
        self._workers.pop(worker_id, None)

    def observe(
        self, worker_id: WorkerId, work: StepWork, seconds: float, drafting: Drafting = NO_DRAFTS
    ) -> None:
        """How long the device took for a step. A sample of the steps is enough."""
        worker = self._workers[worker_id]
        if work.decodes:
            answers = work.decodes / drafting.rows
            worker.answers = _DRAFTS_MEMORY * worker.answers + answers
            worker.rows = _DRAFTS_MEMORY * worker.rows + work.decodes
            worker.tokens = _DRAFTS_MEMORY * worker.tokens + drafting.tokens * answers
        worker.prompts = _MEMORY * worker.prompts + (work.prompt_tokens > 0)
        worker.decodes = _MEMORY * worker.decodes + (work.decodes > 0)
        worker.fit.observe(work, seconds)
        self._all.observe(work, seconds)
        usual = self._all.model.seconds(work)
        worker.slowness += _SPEED_WEIGHT * (min(max(seconds / usual, 0.1), 10.0) - worker.slowness)

    def drafting(self, worker_id: WorkerId) -> Drafting:
        """Draft statistics of a worker's latest steps."""
        worker = self._workers[worker_id]
        if worker.rows == worker.answers:
            return NO_DRAFTS
        return Drafting(worker.rows / worker.answers, worker.tokens / worker.answers)

    def of(self, worker_id: WorkerId) -> StepTime:
        worker = self._workers[worker_id]
        if min(worker.prompts, worker.decodes) >= _ENOUGH or len(self._workers) == 1:
            return worker.fit.model
        return self._all.model.scaled(worker.slowness)
