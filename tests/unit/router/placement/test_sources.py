"""Whether a prefix is computed, or copied from the worker that has it cached."""

from __future__ import annotations

from typing import Any

import pytest

from router.config.choices import Mode, Routing
from router.placement import (
    AdaptivePlacement,
    ClusterView,
    Health,
    LinkView,
    RequestView,
    Targets,
    policy_for,
)
from router.placement.sources import best_source, ways
from tests.unit.router.placement.views import loaded

RATE = 1000.0
"""Prompt tokens a second."""


def request_with(tokens: int = 2000, **fields: Any) -> RequestView:
    return RequestView(prompt_tokens=tokens, expected_output=8, arrived=0.0, **fields)


def view_of(*workers: Any, bytes_per_s: float = 1e6, **fields: Any) -> ClusterView:
    link = LinkView(bytes_per_s=bytes_per_s, latency_s=0.01)
    return ClusterView(now=0.0, workers=workers, kv_bytes_per_token=100, link=link, **fields)


def sharing(name: str, **load: Any) -> Any:
    return loaded(name, shares_prefixes=True, **load)


def test_a_prefix_comes_from_the_worker_that_has_most_of_it() -> None:
    a, b, c = sharing("a"), sharing("b"), sharing("c")
    request = request_with(stored={"b": 500, "c": 1000}, cached={"a": 100})
    source = best_source(request, view_of(a, b, c), a, RATE)
    assert source is not None
    assert (source.worker, source.tokens, source.fresh_tokens) == ("c", 1000, 900)
    assert source.pull_s == pytest.approx(0.01 + 900 * 100 / 1e6)
    assert source.compute_s == pytest.approx(0.9)
    assert "900 tokens from c" in str(source)


def test_a_slow_link_leaves_the_prefix_to_be_computed() -> None:
    a, b = sharing("a"), sharing("b")
    request = request_with(stored={"b": 1000})
    assert best_source(request, view_of(a, b, bytes_per_s=9e4), a, RATE) is None
    links = {("b", "a"): LinkView(bytes_per_s=1e6, latency_s=0.01)}
    assert best_source(request, view_of(a, b, bytes_per_s=9e4, links=links), a, RATE) is not None


def test_a_short_prefix_is_not_worth_the_latency_of_a_link() -> None:
    a, b = sharing("a"), sharing("b")
    assert best_source(request_with(stored={"b": 10}), view_of(a, b), a, RATE) is None


@pytest.mark.parametrize(
    "other",
    [loaded("b"), sharing("b", health=Health.LATE), sharing("b", page_size=16)],
    ids=["without a transport", "late", "of another page size"],
)
def test_no_prefix_comes_from_a_worker_that_cannot_send_it(other: Any) -> None:
    request = request_with(stored={"b": 1008})
    assert best_source(request, view_of(sharing("a"), other), sharing("a"), RATE) is None


def test_what_a_source_has_on_a_tier_takes_longer() -> None:
    a, b = sharing("a"), sharing("b")
    request = request_with(stored={"b": 1000}, on_tiers={"b": 400})
    tiers = {"b": LinkView(bytes_per_s=1e5, latency_s=0.0)}
    source = best_source(request, view_of(a, b, tiers=tiers), a, RATE)
    assert source is not None
    assert source.pull_s == pytest.approx(0.01 + 1000 * 100 / 1e6 + 400 * 100 / 1e5)


def test_a_request_leaves_a_worker_whose_tier_is_slower_than_computing() -> None:
    a, b = loaded("a"), loaded("b")
    policy = AdaptivePlacement(Targets(ttft_s=0.5, tpot_s=0.02))
    request = request_with(20_000, cached={"a": 19_000}, on_tiers={"a": 19_000})
    for bytes_per_s, chosen in ((1e9, "a"), (1e5, "b")):
        tiers = {"a": LinkView(bytes_per_s=bytes_per_s, latency_s=0.0)}
        assert policy.place(request, view_of(a, b, tiers=tiers)).prefill_worker == chosen


def test_no_prefix_comes_from_a_worker_on_which_the_request_has_failed() -> None:
    a, b = sharing("a"), sharing("b")
    request = request_with(stored={"b": 1000}, avoid=frozenset({"b"}))
    assert best_source(request, view_of(a, b), a, RATE) is None


@pytest.mark.parametrize("mode", list(Mode))
def test_every_policy_names_the_source_of_a_prefix(mode: Mode) -> None:
    busy, idle = sharing("a", tokens=10**6, requests=9), sharing("b")
    policy = policy_for(mode, Routing.LEAST_LOADED, Targets(ttft_s=0.5, tpot_s=0.02))
    request = request_with(20_000, stored={"a": 19_000}, cached={"a": 19_000})
    placement = policy.place(request, view_of(busy, idle, bytes_per_s=1e10))
    assert placement is not None
    if placement.prefill_worker == "b":
        assert placement.source is not None
        assert placement.source.worker == "a"
    else:
        assert (mode, placement.source) == (Mode.ADAPTIVE, None)


def test_the_predictions_of_all_ways_are_told_also_of_those_not_taken() -> None:
    a, b = sharing("a"), sharing("b")
    request = request_with(2000, cached={"a": 800}, on_tiers={"a": 500}, stored={"b": 1000})
    tiers = {"a": LinkView(bytes_per_s=1e6, latency_s=0.0)}
    for bytes_per_s, told in (
        (1e6, "200 tokens from b in 30 ms rather than computed in 200 ms"),
        (5e4, "200 tokens would come from b in 410 ms rather than computed in 200 ms"),
    ):
        view = view_of(a, b, bytes_per_s=bytes_per_s, tiers=tiers)
        assert str(ways(request, view, a, RATE)) == (
            "800 prompt tokens cached, which saves 800 ms,"
            f" 500 of them from tiers in 50 ms rather than computed in 500 ms, {told};"
            " the whole prompt takes 2000 ms"
        )


def test_nothing_is_told_of_a_prompt_that_is_cached_nowhere() -> None:
    assert str(ways(request_with(), view_of(sharing("a"), sharing("b")), sharing("a"), RATE)) == ""
