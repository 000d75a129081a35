"""Whether a router was itself stopped, on a manual clock."""

from __future__ import annotations

from router.dispatch.workers.liveness import OwnPauses
from rpc.session import LEASE_S


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def turns(pauses: OwnPauses, clock: Clock, seconds: float) -> None:
    """Turns of an event loop that runs as it should."""
    for _ in range(round(seconds / 0.25)):
        clock.now += 0.25
        pauses.turned()


def test_a_busy_router_has_no_pauses() -> None:
    clock = Clock()
    pauses = OwnPauses(clock)
    for hang_s in (0.05, 1.0, 5.0):
        clock.now += hang_s
        assert not pauses.is_recent
        pauses.turned()
        assert not pauses.is_recent


def test_a_pause_as_long_as_the_lease_counts_before_and_after_the_next_turn() -> None:
    clock = Clock()
    pauses = OwnPauses(clock)
    turns(pauses, clock, 10.0)
    clock.now += LEASE_S
    assert pauses.is_recent
    pauses.turned()
    assert pauses.is_recent
    turns(pauses, clock, 4.0)
    assert pauses.is_recent


def test_a_pause_is_over_some_seconds_later() -> None:
    clock = Clock()
    pauses = OwnPauses(clock)
    clock.now += 100.0
    turns(pauses, clock, 6.0)
    assert not pauses.is_recent
