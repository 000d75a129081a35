"""Worker selection policies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.block_hash import block_hashes
from router.config.choices import Routing
from router.placement import RequestView
from router.placement.account.cached_prefixes import CachedPrefixes
from router.placement.policies.by_load import POLICIES, least_loaded, power_of_two, prefix_aware, round_robin
from tests.unit.router.placement.views import loaded

REQUEST = RequestView(prompt_tokens=100, expected_output=1, arrived=0.0)


def test_every_setting_has_its_policy() -> None:
    assert set(POLICIES) == set(Routing)


def test_round_robin_ignores_the_load() -> None:
    workers = [loaded(tokens=1000), loaded(), loaded()]
    assert [round_robin(workers, REQUEST, turn) for turn in range(6)] == [*workers, *workers]


def test_least_loaded_counts_tokens_before_requests() -> None:
    long, short = loaded(tokens=4000, requests=1), loaded(tokens=80, requests=8)
    assert least_loaded([long, short], REQUEST, 0) is short


def test_equally_loaded_workers_are_chosen_round_robin() -> None:
    workers = [loaded(name) for name in "abc"]
    assert [least_loaded(workers, REQUEST, turn) for turn in range(3)] == workers


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=200), st.integers(1, 8))
def test_least_loaded_keeps_workers_within_one_request_of_each_other(sizes: list[int], count: int) -> None:
    tokens = [0] * count
    for turn, size in enumerate(sizes):
        workers = [loaded(str(n), tokens=t) for n, t in enumerate(tokens)]
        tokens[int(least_loaded(workers, REQUEST, turn).id)] += size
    assert max(tokens) - min(tokens) <= max(sizes)


def test_power_of_two_never_picks_the_most_loaded_worker() -> None:
    workers = [loaded(requests=load, tokens=load) for load in range(3)]
    assert {power_of_two(workers, REQUEST, turn).tokens for turn in range(50)} == {0, 1}
    assert power_of_two(workers[:1], REQUEST, 0) is workers[0]


def test_a_request_goes_where_the_least_is_left_to_compute() -> None:
    request = RequestView(prompt_tokens=1100, expected_output=1, arrived=0.0, cached={"hit": 1000})
    idle, hit = loaded("idle", tokens=100), loaded("hit", tokens=1900)
    assert prefix_aware([idle, hit], request, 0) is hit
    assert prefix_aware([idle, loaded("hit", tokens=2200)], request, 0) is idle


def test_without_a_hit_equals_take_turns() -> None:
    workers = [loaded("a", tokens=5), loaded("b", tokens=5)]
    request = RequestView(prompt_tokens=10, expected_output=1, arrived=0.0)
    assert [prefix_aware(workers, request, turn) for turn in range(4)] == [*workers, *workers]


def test_a_hot_prefix_spreads_instead_of_overloading_the_worker_that_has_it() -> None:
    """448 requests with one prefix of 10,000 tokens and 500 of their own, none of which ends."""
    caches = [CachedPrefixes(500) for _ in range(4)]
    tokens, given_to = [0] * 4, [0] * 4
    for turn in range(448):
        blocks = block_hashes([7] * 10_000 + [turn] * 500, 500)
        cached = {str(n): cache.matching_tokens(blocks) for n, cache in enumerate(caches)}
        request = RequestView(prompt_tokens=10_500, expected_output=1, arrived=0.0, cached=cached)
        workers = [loaded(str(n), tokens=load) for n, load in enumerate(tokens)]
        chosen = prefix_aware(workers, request, turn)
        number = int(chosen.id)
        tokens[number] += 10_500 - request.cached_on(chosen)
        given_to[number] += 1
        caches[number].expect(blocks)
    assert sum(tokens) == 4 * 10_000 + 448 * 500  # each computed it once
    assert max(given_to) - min(given_to) <= 41
