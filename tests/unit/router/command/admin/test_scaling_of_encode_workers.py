"""Which numbers of encode workers, and of workers beside them, are possible."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from unittest import mock

import pytest

from router.cluster.fleet import WantedWorkers
from router.command.admin.scaling import CannotScale, Scaling
from router.dispatch.workers.registry import Registry
from worker.config import WorkerRole


class Supply:
    """The workers that a cluster is to have."""

    def __init__(self, **counts: int) -> None:
        self.have = {WorkerRole(role): WantedWorkers.first(WorkerRole(role), n) for role, n in counts.items()}

    @property
    def roles(self) -> Collection[WorkerRole]:
        return self.have.keys()

    async def wanted(self) -> Mapping[WorkerRole, WantedWorkers]:
        return self.have

    async def want(self, role: WorkerRole, workers: WantedWorkers) -> None:
        self.have[role] = workers

    async def lacks_room(self, counts: Mapping[WorkerRole, int]) -> str:
        return ""

    def keeps_room(self, worker_id: str) -> bool:
        return False

    async def actors(self) -> Collection[str]:
        return [name for workers in self.have.values() for name in workers.worker_ids]


def scaling(supply: Supply) -> Scaling:
    found: Any = Scaling(supply, Registry([]), mock.Mock(), drain_timeout_s=1.0)  # type: ignore[arg-type]
    found.adjust = mock.AsyncMock()
    result: Scaling = found
    return result


async def test_there_may_be_no_encode_worker_or_several() -> None:
    supply = Supply(decode=1, encode=1)
    for number in (0, 3):
        await scaling(supply).request(WorkerRole.ENCODE, number)
        assert len(supply.have[WorkerRole.ENCODE].worker_ids) == number


async def test_encode_workers_compute_no_answers() -> None:
    with pytest.raises(CannotScale, match="no worker would be left"):
        await scaling(Supply(decode=1, encode=2)).request(WorkerRole.DECODE, 0)


async def test_a_cluster_that_was_started_without_encode_workers_gets_none() -> None:
    with pytest.raises(CannotScale, match="no encode workers in this mode; start with --encode-workers"):
        await scaling(Supply(decode=1)).request(WorkerRole.ENCODE, 1)
