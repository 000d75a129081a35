"""Requests that need pages in quarantine, which may never be free, and those behind them in the queue."""

from __future__ import annotations

import pytest

from engine.config import Policy
from engine.core.waits import WaitReason
from engine.kv.manager.reservations import Reservation
from engine.loop.engine import Engine
from tests.unit.engine.engines import make_engine, make_request, run
from tests.unit.engine.fake_runner import reference


def quarantine(engine: Engine, tokens: int) -> Reservation:
    """A sender has vanished that was to write this many tokens."""
    reservation = engine.reserve(make_request(1, [1] * tokens, 2))
    assert reservation is not None
    engine.kv.quarantine(reservation)
    return reservation


@pytest.mark.parametrize("policy", [Policy.FCFS, Policy.SHORTEST, Policy.PRIORITY])
def test_a_request_that_needs_them_stops_no_other(policy: Policy) -> None:
    engine = make_engine(num_pages=16, policy=policy, prompt_patience=4.0)
    reservation = quarantine(engine, 8)
    large = make_request(2, [2] * 58, 2, ignore_eos=True)  # 15 of 16 pages
    engine.submit(large)
    for number in range(10, 60):
        small = make_request(number, [number, 3, 4, 5, 6], 2, ignore_eos=True)
        engine.submit(small)
        for _ in range(6):
            engine.step()
        assert small.finish is not None
    assert list(engine.scheduler.waiting) == [large]
    assert engine.scheduler.waits_for is WaitReason.PAGES
    assert not engine.scheduler.wants_pages
    assert engine.stats().starved == 0
    engine.kv.free_reservation(reservation)
    run(engine)
    assert large.output == reference(large.prompt, 2, ignore_eos=True)


def test_handoffs_are_received_while_a_preempted_request_waits_for_them() -> None:
    """It has grown to more pages than are left."""
    engine = make_engine(num_pages=16)
    reservation = quarantine(engine, 8)
    growing = make_request(2, [2] * 50, 12, ignore_eos=True)
    engine.submit(growing)
    while not engine.stats().preemptions:
        engine.step()
    engine.step()
    assert list(engine.scheduler.waiting) == [growing]
    assert not engine.scheduler.wants_pages
    received = engine.reserve(make_request(3, [9] * 8, 2))
    assert received is not None
    engine.kv.free_reservation(received)
    engine.kv.free_reservation(reservation)
    run(engine)
    assert growing.output == reference(growing.prompt, 12, ignore_eos=True)
