"""Admission by what waits, and by how fast it is served."""

from __future__ import annotations

import math

import pytest

from router.dispatch.admission.prefill_queue import PrefillQueue
from router.errors import Overloaded


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def queue(max_tokens: int = 100_000, max_wait_s: float = 10.0) -> tuple[PrefillQueue, Clock]:
    clock = Clock()
    return PrefillQueue(max_tokens, max_wait_s, clock), clock


def busy(max_wait_s: float = 10.0) -> tuple[PrefillQueue, Clock]:
    """A queue of 20,000 tokens that is served at 1,000 tokens a second, as it knows."""
    line, clock = queue(max_wait_s=max_wait_s)
    line.enter(20_000)
    for place in [line.enter(1000) for _ in range(10)]:
        clock.now += 1.0
        place.served()
    return line, clock


def test_prompts_beyond_the_limit_are_refused_until_others_are_served() -> None:
    line, _ = queue(max_tokens=100)
    first = line.enter(60)
    with pytest.raises(Overloaded, match="60 prompt tokens"):
        line.enter(41)
    line.enter(40)
    first.served()
    line.enter(60)


def test_a_prompt_larger_than_the_limit_is_let_in_when_nothing_waits() -> None:
    line, _ = queue(max_tokens=100)
    line.enter(1000).served()
    line.enter(1000)
    with pytest.raises(Overloaded):
        line.enter(1)


def test_the_wait_is_predicted_from_what_waits_and_the_rate_at_which_it_was_served() -> None:
    line, _ = busy(max_wait_s=math.inf)
    assert line.wait_s() == pytest.approx(20.0)


def test_who_would_wait_too_long_is_told_when_to_come_back() -> None:
    line, _ = busy()
    with pytest.raises(Overloaded, match="about 20 s") as refused:
        line.enter(10)
    assert refused.value.retry_after_s == pytest.approx(10.0)


def test_a_client_that_would_not_wait_so_long_is_refused_before_others() -> None:
    line, _ = busy(max_wait_s=60.0)
    line.enter(10, patience_s=30.0)
    with pytest.raises(Overloaded):
        line.enter(10, patience_s=15.0)


def test_small_prompts_served_one_by_one_say_nothing_about_how_fast_many_would_be() -> None:
    line, clock = queue()
    for _ in range(100):
        place = line.enter(10)
        clock.now += 0.5
        place.served()
    line.enter(50_000)
    assert line.wait_s() == 0.0


def test_a_rate_of_long_ago_counts_less_than_that_of_now() -> None:
    line, clock = busy(max_wait_s=math.inf)
    for _ in range(100):
        place = line.enter(4000)
        clock.now += 1.0
        place.served()
    assert line.wait_s() == pytest.approx(5.0, rel=0.05)


def test_prompts_that_are_given_up_leave_without_counting_as_served() -> None:
    line, clock = busy(max_wait_s=math.inf)
    before = line.wait_s()
    with line.enter(5000):
        pass
    assert line.wait_s() == before
    assert line.tokens == 20_000
    clock.now += 10.0
    with line.enter(1000) as place:
        place.served()
        place.served()
    assert line.tokens == 20_000
    assert line.wait_s() > before


def test_a_prompt_that_has_to_be_computed_again_is_not_refused_and_counts() -> None:
    line, _ = queue(max_tokens=100)
    with line.enter(60) as place:
        place.served()
        line.enter(100)
        place.again(65)
        assert line.tokens == 165
        place.again(65)  # it failed before its first token
        assert line.tokens == 165
        place.served()
        assert line.tokens == 100
        place.again(70)
    assert line.tokens == 100


def test_prompts_that_are_held_back_for_want_of_room_are_pressure_however_small() -> None:
    line, clock = queue(max_wait_s=math.inf)
    line.held_back = 1
    line.enter(1000)
    for _ in range(10):
        place = line.enter(10)
        clock.now += 1.0
        place.served()
    assert line.wait_s() == pytest.approx(100.0)
