"""Backpressure by queued tokens and service rate."""

from __future__ import annotations

import math

import pytest

from router.dispatch.admission.prefill_queue import PrefillQueue
from router.errors import Overloaded


class Line:
    """A queue, its clock, and what waits at the workers."""

    def __init__(self, max_tokens: int = 100_000, max_wait_s: float = 10.0) -> None:
        self.now = 0.0
        self.at_workers = 0
        self.held_back = 0
        self.queue = PrefillQueue(
            max_tokens, max_wait_s, lambda: self.at_workers, lambda: self.held_back, lambda: self.now
        )

    def enter(self, tokens: int, patience_s: float = math.inf) -> None:
        self.queue.check(tokens, patience_s)
        self.at_workers += tokens

    def leave(self, tokens: int) -> None:
        """Without a token."""
        self.at_workers -= tokens

    def serve(self, tokens: int, seconds: float = 0.0) -> None:
        self.now += seconds
        self.at_workers -= tokens
        self.queue.served(tokens)


def busy(max_wait_s: float = 10.0) -> Line:
    """A queue of 20,000 tokens with a measured service rate of 1,000 tokens per second."""
    line = Line(max_wait_s=max_wait_s)
    line.enter(20_000)
    for _ in range(10):
        line.enter(1000)
    for _ in range(10):
        line.serve(1000, seconds=1.0)
    return line


def test_prompts_beyond_the_limit_are_refused_until_others_are_served() -> None:
    line = Line(max_tokens=100)
    line.enter(60)
    with pytest.raises(Overloaded, match="60 prompt tokens"):
        line.enter(41)
    line.enter(40)
    line.serve(60)
    line.enter(60)


def test_a_prompt_larger_than_the_limit_is_admitted_to_an_empty_queue() -> None:
    line = Line(max_tokens=100)
    line.enter(1000)
    line.serve(1000)
    line.enter(1000)
    with pytest.raises(Overloaded):
        line.enter(1)


def test_queue_time_is_estimated_from_queued_tokens_and_service_rate() -> None:
    assert busy(max_wait_s=math.inf).queue.wait_s() == pytest.approx(20.0)


def test_a_request_with_too_long_a_queue_time_gets_retry_after() -> None:
    line = busy()
    with pytest.raises(Overloaded, match="is 20 s") as refused:
        line.enter(10)
    assert refused.value.retry_after_s == pytest.approx(10.0)


def test_a_request_with_a_short_deadline_is_refused_earlier() -> None:
    line = busy(max_wait_s=60.0)
    line.enter(10, patience_s=30.0)
    with pytest.raises(Overloaded):
        line.enter(10, patience_s=15.0)


def test_the_service_rate_is_not_measured_without_pressure() -> None:
    line = Line()
    for _ in range(100):
        line.enter(10)
        line.serve(10, seconds=0.5)
    line.enter(50_000)
    assert line.queue.wait_s() == 0.0


def test_old_service_rates_decay() -> None:
    line = busy(max_wait_s=math.inf)
    for _ in range(100):
        line.enter(4000)
        line.serve(4000, seconds=1.0)
    assert line.queue.wait_s() == pytest.approx(5.0, rel=0.05)


def test_aborted_prompts_do_not_count_as_served() -> None:
    line = busy(max_wait_s=math.inf)
    before = line.queue.wait_s()
    line.enter(5000)
    line.leave(5000)
    assert line.queue.wait_s() == before
    line.enter(1000)
    line.serve(1000, seconds=10.0)
    assert line.queue.wait_s() > before


def test_a_sequence_that_waits_in_the_router_counts_and_is_not_refused() -> None:
    line = Line(max_tokens=100)
    line.enter(40)
    with line.queue.waiting(65):
        assert line.queue.tokens == 105
        with pytest.raises(Overloaded):
            line.enter(1)
    assert line.queue.tokens == 40


def test_prompts_that_wait_for_decode_room_are_pressure_whatever_their_size() -> None:
    line = Line(max_wait_s=math.inf)
    line.held_back = 1
    line.enter(1000)
    for _ in range(10):
        line.enter(10)
        line.serve(10, seconds=1.0)
    assert line.queue.wait_s() == pytest.approx(100.0)


def serve_three_at_a_time(line: Line, rounds: int) -> None:
    """Prompts of 2,000 tokens, each served within 0.2 s."""
    for _ in range(rounds):
        for _ in range(3):
            line.enter(2000)
        line.now += 0.2
        for _ in range(3):
            line.serve(2000)


def test_a_rate_measured_in_a_stall_refuses_nobody_afterwards() -> None:
    line = busy()
    line.now += 180.0  # a worker hangs, and the clients of its prompts give up
    line.leave(20_000)
    assert line.queue.wait_s() == 0.0
    serve_three_at_a_time(line, rounds=1000)


def test_a_rate_measured_while_decode_workers_were_full_refuses_nobody_afterwards() -> None:
    line = Line()
    line.held_back = 1
    line.enter(10)
    line.serve(10)
    line.enter(10)
    line.serve(10, seconds=400.0)
    line.held_back = 0
    serve_three_at_a_time(line, rounds=1000)
