"""Which running answers move, and that they never wander."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.placement import ClusterView, Move, MoveReason, Moves, RunningAnswer, remaining_tokens
from router.placement.moves import _PAUSE_S, _REVIEWS
from tests.unit.router.placement.test_policies import TARGETS, view, worker

CONTEXT = 3000
NO_PAGES_KNOWN: Mapping[str, int] = {}
MANY = 140
"""Decodes of 3,000 tokens with which a step takes longer than the target."""


def answers(**counts: int) -> list[RunningAnswer]:
    names = [name for name, count in counts.items() for _ in range(count)]
    return [RunningAnswer(number, name, CONTEXT, 200) for number, name in enumerate(names)]


def cluster(
    running: list[RunningAnswer], names: str, now: float, pages: Mapping[str, int] = NO_PAGES_KNOWN
) -> ClusterView:
    workers = []
    for name in names:
        mine = [answer for answer in running if answer.worker == name]
        free = pages.get(name, 50_000)
        workers.append(
            replace(
                worker(name),
                decodes=len(mine),
                context_tokens=sum(answer.context_tokens for answer in mine),
                available_pages=free,
            )
        )
    return replace(view(*workers), now=now)


def reviewed(
    moves: Moves, running: list[RunningAnswer], names: str = "ab", **rest: Mapping[str, int]
) -> list[Move | None]:
    """As often as an overload has to last."""
    return [moves.review(cluster(running, names, 0.5 * n, **rest), running) for n in range(_REVIEWS)]


def test_an_answer_moves_from_a_worker_whose_steps_are_too_long_when_that_lasts() -> None:
    *before, move = reviewed(Moves(TARGETS), answers(a=MANY, b=5))
    assert before == [None] * (_REVIEWS - 1)
    assert move is not None
    assert (move.source, move.target, move.reason) == ("a", "b", MoveReason.ITL)
    assert move.before_s > TARGETS.itl_s > move.after_s


def test_an_answer_moves_from_a_worker_whose_pages_run_out() -> None:
    *_, move = reviewed(Moves(TARGETS), answers(a=20, b=20), pages={"a": 30})
    assert move is not None
    assert (move.source, move.target, move.reason) == ("a", "b", MoveReason.PAGES)


@pytest.mark.parametrize(
    ("counts", "pages"),
    [({"a": 20, "b": 5}, {}), ({"a": MANY, "b": MANY}, {}), ({"a": MANY, "b": 5}, {"b": 200})],
    ids=["no worker is overloaded", "all are", "the other has no pages"],
)
def test_nothing_moves_where_it_would_not_help(counts: dict[str, int], pages: dict[str, int]) -> None:
    assert reviewed(Moves(TARGETS), answers(**counts), pages=pages) == [None] * _REVIEWS


def test_workers_that_only_prefill_get_no_answers() -> None:
    moves, running = Moves(TARGETS), answers(a=MANY)
    found = [moves.review(cluster(running, "ab", 0.5 * n), running, frozenset("b")) for n in range(5)]
    assert found == [None] * 5


def test_workers_without_a_free_slot_get_no_answers() -> None:
    for slots, expected in ((5, None), (6, "b")):
        moves, running = Moves(TARGETS), answers(a=MANY, b=5)
        for turn in range(_REVIEWS):
            seen = cluster(running, "ab", 0.5 * turn)
            full = replace(seen, workers=tuple(replace(w, max_running=slots) for w in seen.workers))
            move = moves.review(full, running)
        assert (None if move is None else move.target) == expected


def test_an_answer_that_ends_soon_stays() -> None:
    running = [replace(answer, remaining=10) for answer in answers(a=MANY, b=5)]
    assert reviewed(Moves(TARGETS), running) == [None] * _REVIEWS


def test_a_short_overload_moves_nothing() -> None:
    moves = Moves(TARGETS)
    for n in range(20):
        running = answers(a=5 if n % _REVIEWS == _REVIEWS - 1 else MANY, b=5)
        assert moves.review(cluster(running, "ab", 0.5 * n), running) is None


@settings(deadline=None, max_examples=60)
@given(
    start=st.lists(st.tuples(st.sampled_from("abc"), st.integers(100, 9000)), max_size=300),
    events=st.lists(
        st.tuples(
            st.floats(0.05, 1.0),
            st.lists(st.sampled_from("abc"), max_size=12),
            st.integers(0, 12),
            st.dictionaries(st.sampled_from("abc"), st.sampled_from([0, 10, 400, 50_000])),
        ),
        max_size=120,
    ),
)
def test_no_answer_moves_twice_and_no_worker_takes_part_in_more_than_thirty_moves_a_minute(
    start: list[tuple[str, int]],
    events: list[tuple[float, list[str], int, dict[str, int]]],
) -> None:
    """Whatever load comes and goes, and whatever pages workers report."""
    moves, now = Moves(TARGETS), 0.0
    running = [RunningAnswer(n, name, tokens, 300) for n, (name, tokens) in enumerate(start)]
    number = len(running)
    moved: Counter[int] = Counter()
    took_part: dict[str, list[float]] = {name: [] for name in "abc"}
    for seconds, come, gone, pages in events:
        now += seconds
        running = running[gone:]
        for name in come:
            running.append(RunningAnswer(number, name, CONTEXT, 300))
            number += 1
        move = moves.review(cluster(running, "abc", now, pages), running)
        if move is None:
            continue
        moved[move.answer] += 1
        for name in (move.source, move.target):
            took_part[name].append(now)
        assert move.source != move.target
        running = [replace(a, worker=move.target) if a.id == move.answer else a for a in running]
    assert max(moved.values(), default=0) <= 1
    for times in took_part.values():
        assert all(b - a >= _PAUSE_S for a, b in pairwise(times))


def test_what_remains_of_an_answer_is_never_more_than_it_may_have() -> None:
    assert remaining_tokens(expected=256, produced=0, most=100) == 100
    assert remaining_tokens(expected=256, produced=100, most=1000) == 156
    assert remaining_tokens(expected=256, produced=400, most=1000) == 200
    assert remaining_tokens(expected=256, produced=990, most=1000) == 10
