"""Which workers a cluster is to have: pure arithmetic on their names."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from worker.config import WorkerRole


def role_of(worker_id: str) -> WorkerRole:
    """Worker ids are a role and a number."""
    return WorkerRole(worker_id.rpartition("-")[0])


@dataclass(frozen=True, slots=True)
class WantedWorkers:
    """The workers of one role that a cluster is to have."""

    worker_ids: tuple[str, ...]
    configured: int
    """Their number in the settings of the last router that changed it: another number in the settings of a
    later router is a change, the same number is none."""

    @classmethod
    def first(cls, role: WorkerRole, number: int) -> WantedWorkers:
        return cls(tuple(f"{role.value}-{index}" for index in range(number)), number)

    def resized(
        self,
        role: WorkerRole,
        number: int,
        worth: Callable[[str], Any] = lambda worker_id: 0,
        taken: Collection[str] = (),
    ) -> WantedWorkers:
        """`number` workers: the ones of most `worth`, of equal ones the first; and new ones.

        The new ones have the smallest numbers that are neither used nor `taken`, by workers that still end.
        """
        kept = sorted(self.worker_ids, key=worth, reverse=True)[:number]
        used = {*kept, *taken}
        names = (f"{role.value}-{index}" for index in count())
        new = (name for name in names if name not in used)
        chosen = {*kept, *(next(new) for _ in range(number - len(kept)))}
        return replace(self, worker_ids=tuple(sorted(chosen, key=_number)))

    def configured_as(self, number: int) -> WantedWorkers:
        return replace(self, configured=number)

    def to_json(self) -> bytes:
        return json.dumps([self.configured, self.worker_ids]).encode()

    @classmethod
    def from_json(cls, value: bytes) -> WantedWorkers:
        configured, worker_ids = json.loads(value)
        return cls(tuple(worker_ids), configured)


def in_order(worker_ids: Collection[str]) -> Sequence[str]:
    """Prefill workers first, by number."""
    order = list(WorkerRole)
    return sorted(worker_ids, key=lambda name: (order.index(role_of(name)), _number(name)))


def _number(worker_id: str) -> int:
    return int(worker_id.rpartition("-")[2])
