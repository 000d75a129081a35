"""What the live page is told of a worker."""

from __future__ import annotations

from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from router.api.page.status import StatusReader, WorkerFigures, WorkerStatsReader, _worker
from router.dispatch.metrics.recent import Recent
from rpc.baton.v1 import worker_pb2


def test_a_worker_is_drawn_with_its_tiers() -> None:
    host = worker_pb2.KVTier(name="host", pages=5, capacity=10, promoted=3)
    stats = worker_pb2.WorkerStats(
        pages=worker_pb2.PageCounts(free=3, leaving=2),
        tiers=worker_pb2.KVTiers(tiers=[host], page_bytes=100),
    )
    figures = WorkerFigures(epoch=1)
    figures.samples.append((0.0, stats))
    shown = _worker(Mock(), figures)
    assert shown["tiers"] == [{"name": "host", "bytes": 500, "capacity_bytes": 1000, "promoted_bytes": 300}]
    assert sum(shown["pages"].values()) == 5


async def test_waiting_requests_are_those_of_the_workers_and_of_the_router(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members, figures = [], {}
    for name, waiting in (("decode-0", 2), ("decode-1", 1), ("decode-2", None)):
        member = MagicMock()
        member.handle.worker_id = name
        members.append(member)
        if waiting is not None:
            stats = worker_pb2.WorkerStats(load=worker_pb2.Load(waiting=waiting))
            figures[name] = WorkerFigures(epoch=1)
            figures[name].samples.append((0.0, stats))
    monkeypatch.setattr(WorkerStatsReader, "read", AsyncMock(return_value=figures))
    queue = Mock(held_back=4, tokens=900)
    queue.wait_s.return_value = 0.0
    registry = Mock()
    registry.members.return_value = members
    status = await StatusReader(MagicMock(), registry, Recent(), queue, lambda: 0).read()
    assert status["requests"]["waiting"] == sum(each.get("waiting", 0) for each in status["workers"]) == 3
    assert status["requests"]["held_back"] == 4
