"""A worker that says nothing is late at first, and lost in bounded time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.workers.liveness import HeartbeatMonitor, Liveness


def test_silence_makes_a_worker_late_and_then_lost() -> None:
    monitor = HeartbeatMonitor(1.0, 3.0)
    assert monitor.passed(0.9) is Liveness.GOOD
    assert monitor.passed(0.2) is Liveness.LATE
    assert monitor.passed(2.8) is Liveness.LATE
    assert monitor.passed(0.2) is Liveness.LOST


def test_a_message_of_a_late_worker_restarts_its_timeouts() -> None:
    monitor = HeartbeatMonitor(1.0, 3.0)
    monitor.passed(3.9)
    monitor.heard()
    assert monitor.liveness is Liveness.GOOD
    assert monitor.passed(0.9) is Liveness.GOOD


def test_an_answered_probe_restarts_the_timeouts_only_once() -> None:
    monitor = HeartbeatMonitor(1.0, 3.0)
    monitor.passed(3.0)
    monitor.answered()
    assert monitor.liveness is Liveness.GOOD
    assert monitor.passed(3.9) is Liveness.LATE
    monitor.answered()
    assert monitor.passed(0.2) is Liveness.LOST


def test_without_grace_a_late_worker_is_lost() -> None:
    assert HeartbeatMonitor(1.0, 0.0).passed(1.0) is Liveness.LOST


@given(st.lists(st.sampled_from(["answered", "passed"]), max_size=60))
def test_a_silent_stream_is_lost_after_twice_the_time_even_if_probes_are_answered(moves: list[str]) -> None:
    monitor = HeartbeatMonitor(1.0, 3.0)
    passed = 0.0
    for move in moves:
        if monitor.liveness is Liveness.LOST:
            break
        if move == "answered":
            monitor.answered()
        else:
            passed += 0.25
            monitor.passed(0.25)
    assert passed <= 8.0
