"""What the live page is told of a worker."""

from __future__ import annotations

from unittest.mock import Mock

from router.frontend.page.status import WorkerFigures, _worker
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
