"""Merging token streams of two workers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.attempts.token_order import Diverged, TokenOrder
from rpc.baton.v1 import sampling_pb2, worker_pb2

BEGIN = 4
ANSWER = [7 * i % 50 for i in range(40)]


def event(position: int, count: int = 1) -> worker_pb2.Tokens:
    logprobs = [sampling_pb2.TokenLogprobs(rank=i) for i in range(position, position + count)]
    return worker_pb2.Tokens(position=position, ids=ANSWER[position : position + count], logprobs=logprobs)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=40), st.randoms())
def test_early_and_duplicate_tokens_are_delivered_once_and_in_order(
    pieces: list[tuple[int, int]], rng: random.Random
) -> None:
    events = [event(BEGIN + begin, count) for begin, count in pieces]
    events += [event(position) for position in range(BEGIN, len(ANSWER))]
    rng.shuffle(events)
    answer = ANSWER[:BEGIN]
    order, given_out, ranks = TokenOrder(answer), [], []
    for number, message in enumerate(events):
        for ready, _ in order.take(message, float(number)):
            assert ready.position == BEGIN + len(given_out)
            given_out += ready.ids
            ranks += [logprobs.rank for logprobs in ready.logprobs]
    assert answer == ANSWER
    assert given_out == ANSWER[BEGIN:]
    assert ranks == [BEGIN + i for i in range(len(given_out))]


def test_a_different_token_at_the_same_position_is_detected() -> None:
    order = TokenOrder([])
    order.take(event(0, 5), 0.0)
    wrong = worker_pb2.Tokens(position=3, ids=[ANSWER[3] + 1])
    with pytest.raises(Diverged, match="position 3"):
        order.take(wrong, 0.0)


def test_an_early_end_of_an_answer_is_delivered_in_order() -> None:
    order = TokenOrder([])
    last = event(1)
    last.finish = sampling_pb2.FINISH_REASON_LENGTH
    assert not order.take(last, 5.0)
    first, end = order.take(event(0), 9.0)
    assert (first[1], end[1], end[0].finish) == (9.0, 5.0, sampling_pb2.FINISH_REASON_LENGTH)


@pytest.mark.parametrize("counts", [(1, 3), (3, 1)])
def test_the_longer_of_two_early_events_at_one_position_is_kept(counts: tuple[int, int]) -> None:
    answer: list[int] = []
    order = TokenOrder(answer)
    for count in counts:
        assert not order.take(event(1, count), 0.0)
    order.take(event(0), 0.0)
    assert answer == ANSWER[:4]
