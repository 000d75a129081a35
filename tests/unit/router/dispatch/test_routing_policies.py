"""Worker selection policies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.config.settings import Routing
from router.placement.by_load import POLICIES, LoadView, least_loaded, power_of_two, round_robin


def test_every_setting_has_its_policy() -> None:
    assert set(POLICIES) == set(Routing)


def test_round_robin_ignores_the_load() -> None:
    workers = [LoadView(tokens=1000), LoadView(), LoadView()]
    assert [round_robin(workers, turn) for turn in range(6)] == [0, 1, 2, 0, 1, 2]


def test_least_loaded_counts_tokens_before_requests() -> None:
    long, short = LoadView(tokens=4000, requests=1), LoadView(tokens=80, requests=8)
    assert least_loaded([long, short], 0) == 1


def test_equally_loaded_workers_are_chosen_round_robin() -> None:
    workers = [LoadView(), LoadView(), LoadView()]
    assert [least_loaded(workers, turn) for turn in range(3)] == [0, 1, 2]


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=200), st.integers(1, 8))
def test_least_loaded_keeps_workers_within_one_request_of_each_other(sizes: list[int], count: int) -> None:
    tokens = [0] * count
    for turn, size in enumerate(sizes):
        tokens[least_loaded([LoadView(tokens=t) for t in tokens], turn)] += size
    assert max(tokens) - min(tokens) <= max(sizes)


def test_power_of_two_never_picks_the_most_loaded_worker() -> None:
    workers = [LoadView(requests=load, tokens=load) for load in range(3)]
    assert {power_of_two(workers, turn) for turn in range(50)} == {0, 1}
    assert power_of_two(workers[:1], 0) == 0
