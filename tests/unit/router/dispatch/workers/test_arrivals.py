"""What was late on the way of a batch, by time stamps of clocks that do not agree."""

from __future__ import annotations

import pytest

from router.dispatch.workers.arrivals import ON_TIME, Arrivals
from rpc.baton.v1 import worker_pb2

CLOCKS_APART_S = 5000.0
USUAL_S = 0.001


class Link:
    """A worker whose batches take a millisecond, unless a test says otherwise."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.now = 100.0
        self.arrivals = Arrivals(lambda began: self.busy_s)

    def batch(self, *, send_s: float = 0.0, late_s: float = 0.0) -> worker_pb2.EventBatch:
        self.now += 0.02
        sent_s = self.now + CLOCKS_APART_S
        self.now += send_s + USUAL_S + late_s
        return worker_pb2.EventBatch(sent_s=sent_s, written_s=sent_s + send_s)

    def usual(self, batches: int = 50) -> None:
        for _ in range(batches):
            self.arrivals.note(self.batch(), self.now)


@pytest.fixture
def link() -> Link:
    link = Link()
    link.usual()
    return link


def test_a_batch_on_time_is_late_by_nothing(link: Link) -> None:
    assert link.arrivals.note(link.batch(), link.now)[:3] == pytest.approx((0.0, 0.0, 0.0))


def test_a_batch_that_waited_in_the_worker(link: Link) -> None:
    arrival = link.arrivals.note(link.batch(send_s=0.2), link.now)
    assert arrival[:3] == pytest.approx((0.2, 0.0, 0.0))


def test_a_batch_that_was_late_on_the_network(link: Link) -> None:
    arrival = link.arrivals.note(link.batch(late_s=0.2), link.now)
    assert arrival[:3] == pytest.approx((0.0, 0.0, 0.2))


def test_a_batch_that_waited_for_the_router(link: Link) -> None:
    link.busy_s = 0.15
    arrival = link.arrivals.note(link.batch(late_s=0.2), link.now)
    assert arrival[:3] == pytest.approx((0.0, 0.15, 0.05))
    link.busy_s = 9.0
    arrival = link.arrivals.note(link.batch(late_s=0.2), link.now)
    assert arrival[:3] == pytest.approx((0.0, 0.2, 0.0)), "a turn may be longer than the batch is late"


def test_clocks_may_drift_apart(link: Link) -> None:
    """Twenty parts in a million over an hour, at one batch in two seconds."""
    for _ in range(1800):
        link.now += 2.0 * (1 + 20e-6)
        link.arrivals.note(link.batch(), link.now)
        batch = link.batch()
        batch.sent_s = batch.written_s = batch.written_s - 20e-6 * link.now
    assert link.arrivals.note(batch, link.now).network_s < 0.1


def test_a_slow_step_is_known_until_the_next_one(link: Link) -> None:
    batch = link.batch()
    batch.slow_step.cause = "gc"
    reported = link.arrivals.note(batch, link.now)
    assert reported.slow is not None
    later = link.arrivals.note(link.batch(), link.now)
    assert (later.slow, later.slow_at) == (reported.slow, reported.slow_at)
    assert later.slow_at < link.now


def test_a_worker_that_sends_no_time_stamps_is_never_late() -> None:
    arrivals = Arrivals(lambda began: 1.0)
    for now in (1.0, 5.0):
        assert arrivals.note(worker_pb2.EventBatch(), now) == ON_TIME
