"""A worker that says nothing is late at first, and lost in bounded time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.workers.silence import Hearing, Silence


def test_silence_makes_a_worker_late_and_then_lost() -> None:
    silence = Silence(1.0, 3.0)
    assert silence.passed(0.9) is Hearing.GOOD
    assert silence.passed(0.2) is Hearing.LATE
    assert silence.passed(2.8) is Hearing.LATE
    assert silence.passed(0.2) is Hearing.LOST


def test_a_late_worker_that_speaks_is_as_good_as_before() -> None:
    silence = Silence(1.0, 3.0)
    silence.passed(3.9)
    silence.heard()
    assert silence.hearing is Hearing.GOOD
    assert silence.passed(0.9) is Hearing.GOOD


def test_an_answered_probe_gives_the_time_anew_but_once() -> None:
    silence = Silence(1.0, 3.0)
    silence.passed(3.0)
    silence.answered()
    assert silence.hearing is Hearing.GOOD
    assert silence.passed(3.9) is Hearing.LATE
    silence.answered()
    assert silence.passed(0.2) is Hearing.LOST


def test_without_grace_a_late_worker_is_lost() -> None:
    assert Silence(1.0, 0.0).passed(1.0) is Hearing.LOST


@given(st.lists(st.sampled_from(["answered", "passed"]), max_size=60))
def test_whatever_probes_answer_a_silent_stream_is_given_up_in_twice_the_time(moves: list[str]) -> None:
    silence = Silence(1.0, 3.0)
    passed = 0.0
    for move in moves:
        if silence.hearing is Hearing.LOST:
            break
        if move == "answered":
            silence.answered()
        else:
            passed += 0.25
            silence.passed(0.25)
    assert passed <= 8.0
