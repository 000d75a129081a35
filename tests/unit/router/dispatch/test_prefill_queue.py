"""Backpressure by queued tokens and service rate."""

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
    """A queue of 20,000 tokens with a measured service rate of 1,000 tokens per second."""
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


def test_a_prompt_larger_than_the_limit_is_admitted_to_an_empty_queue() -> None:
    line, _ = queue(max_tokens=100)
    line.enter(1000).served()
    line.enter(1000)
    with pytest.raises(Overloaded):
        line.enter(1)


def test_queue_time_is_estimated_from_queued_tokens_and_service_rate() -> None:
    line, _ = busy(max_wait_s=math.inf)
    assert line.wait_s() == pytest.approx(20.0)


def test_a_request_with_too_long_a_queue_time_gets_retry_after() -> None:
    line, _ = busy()
    with pytest.raises(Overloaded, match="is 20 s") as refused:
        line.enter(10)
    assert refused.value.retry_after_s == pytest.approx(10.0)


def test_a_request_with_a_short_deadline_is_refused_earlier() -> None:
    line, _ = busy(max_wait_s=60.0)
    line.enter(10, patience_s=30.0)
    with pytest.raises(Overloaded):
        line.enter(10, patience_s=15.0)


def test_the_service_rate_is_not_measured_without_pressure() -> None:
    line, clock = queue()
    for _ in range(100):
        place = line.enter(10)
        clock.now += 0.5
        place.served()
    line.enter(50_000)
    assert line.wait_s() == 0.0


def test_old_service_rates_decay() -> None:
    line, clock = busy(max_wait_s=math.inf)
    for _ in range(100):
        place = line.enter(4000)
        clock.now += 1.0
        place.served()
    assert line.wait_s() == pytest.approx(5.0, rel=0.05)


def test_aborted_prompts_do_not_count_as_served() -> None:
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


def test_a_retried_prompt_is_not_refused_and_counts() -> None:
    line, _ = queue(max_tokens=100)
    with line.enter(60) as place:
        place.served()
        line.enter(100)
        place.requeue(65)
        assert line.tokens == 165
        place.requeue(65)  # it failed before its first token
        assert line.tokens == 165
        place.served()
        assert line.tokens == 100
        place.requeue(70)
    assert line.tokens == 100


def test_prompts_that_wait_for_decode_room_are_pressure_whatever_their_size() -> None:
    line, clock = queue(max_wait_s=math.inf)
    line.held_back = 1
    line.enter(1000)
    for _ in range(10):
        place = line.enter(10)
        clock.now += 1.0
        place.served()
    assert line.wait_s() == pytest.approx(100.0)


def serve_beside_each_other(line: PrefillQueue, clock: Clock, rounds: int) -> None:
    """Prompts of 2,000 tokens, three at a time, each served within 0.2 s."""
    for _ in range(rounds):
        places = [line.enter(2000) for _ in range(3)]
        clock.now += 0.2
        for place in places:
            place.served()


def test_a_rate_measured_in_a_stall_refuses_nobody_afterwards() -> None:
    line, clock = busy()
    clock.now += 180.0  # a worker hangs, and the clients of its prompts give up
    line.leave(20_000, served=False)
    assert line.wait_s() == 0.0
    serve_beside_each_other(line, clock, rounds=1000)


def test_a_rate_measured_while_decode_workers_were_full_refuses_nobody_afterwards() -> None:
    line, clock = queue(max_wait_s=10.0)
    line.held_back = 1
    line.enter(10).served()
    clock.now += 400.0
    line.enter(10).served()
    line.held_back = 0
    serve_beside_each_other(line, clock, rounds=1000)
