"""The jobs of a copier that are under way, with the pages that each is of, and those not sent yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeAlias

from common.block_key import PageKey
from engine.kv.tiers.jobs import Demote, Job, Load, Promote, Remove, Save

Answered: TypeAlias = Demote | Promote | Save | Load


class CopyLedger:
    def __init__(self) -> None:
        self._under_way: dict[int, tuple[Answered, tuple[PageKey, ...]]] = {}
        self._numbers = count(1)
        self._outbox: list[Job] = []

    def __len__(self) -> int:
        """Jobs that have not ended."""
        return len(self._under_way)

    def order(self, keys: Sequence[PageKey], make: Callable[[int], Answered]) -> int:
        """Send what `make` makes of a new id; returns the id."""
        job = make(next(self._numbers))
        self._under_way[job.id] = job, tuple(keys)
        self._outbox.append(job)
        return job.id

    def remove(self, job: Remove) -> None:
        """Send a job that has no answer."""
        self._outbox.append(job)

    def num_under_way(self, kind: type[Answered]) -> int:
        return sum(isinstance(job, kind) for job, _ in self._under_way.values())

    def end(self, id: int) -> tuple[Answered, tuple[PageKey, ...]]:
        return self._under_way.pop(id)

    def take(self) -> list[Job]:
        """Take the jobs to be sent now."""
        jobs, self._outbox = self._outbox, []
        return jobs
