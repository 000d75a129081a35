"""Whether and where a prompt is split between two workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement import (
    AdaptivePlacement,
    ClusterView,
    Link,
    Placement,
    Preference,
    RequestView,
    WorkerView,
)
from router.placement.estimates import Estimates
from router.placement.predict import pace_of, prefill_times, time_behind
from router.placement.splitting import split_points
from tests.unit.router.placement.test_policies import (
    TARGETS,
    D,
    P,
    busy,
    decoding,
    pair,
    request,
    view,
    worker,
)

PAGE = 16


def place(request: RequestView, cluster: ClusterView) -> Placement:
    return AdaptivePlacement(TARGETS, splits=True).place(request, cluster)


def test_a_prefix_is_fetched_from_a_worker_that_is_too_busy_to_compute_the_rest() -> None:
    owner = decoding(busy(worker("owner"), *[3000] * 8), 20)
    placement = place(request(12_000, owner=9_600), view(owner, worker("idle")))
    assert pair(placement) == ("owner", "idle")
    assert placement.split == 9_600
    whole = AdaptivePlacement(TARGETS).place(request(12_000, owner=9_600), view(owner, worker("idle")))
    assert placement.why.candidates[0].ttft_s < whole.why.candidates[0].ttft_s


def test_a_prefix_is_not_fetched_over_a_link_that_is_slower_than_computing_it() -> None:
    owner = decoding(busy(worker("owner"), *[3000] * 8), 20)
    cluster = replace(view(owner, worker("idle")), link=Link(1e9, 0.004))
    assert place(request(12_000, owner=9_600), cluster).split is None


def test_a_prefix_is_not_fetched_from_a_worker_that_has_time() -> None:
    placement = place(request(12_000, p=11_200), view(worker("p"), worker("idle")))
    assert (pair(placement), placement.split) == (("p", "p"), None)


def test_idle_workers_do_not_share_a_prompt() -> None:
    """Its parts cannot be computed at the same time."""
    assert place(request(12_000), view(P, D)).split is None


@given(
    tokens=st.integers(17, 20_000),
    cached=st.tuples(st.integers(0, 20_000), st.integers(0, 20_000)),
    queues=st.tuples(st.lists(st.integers(1, 9000), max_size=8), st.lists(st.integers(1, 9000), max_size=8)),
    decodes=st.tuples(st.integers(0, 100), st.integers(0, 100)),
)
def test_a_split_is_at_a_page_and_leaves_something_to_both(
    tokens: int, cached: tuple[int, int], queues: tuple[list[int], list[int]], decodes: tuple[int, int]
) -> None:
    a, b = (
        decoding(busy(worker(name), *queue), count)
        for name, queue, count in zip("ab", queues, decodes, strict=True)
    )
    wanted = request(tokens, a=cached[0], b=cached[1])
    estimates = Estimates(TARGETS)
    estimates.look([a, b])
    for at in split_points(estimates, wanted, a, b):
        assert at % PAGE == 0
        assert max(PAGE, wanted.cached_on(b)) <= at <= tokens - PAGE
        estimate = estimates.split(wanted, view(a, b), a, b, at)
        assert estimate.ttft_s > 0
        assert estimate.split == at
    placement = place(wanted, view(a, b))
    assert placement.split is None or not placement.is_local


@pytest.mark.parametrize("start", [0.0, 0.05, 10.0])
def test_who_comes_later_waits_for_what_is_left_of_the_queue(start: float) -> None:
    seen: WorkerView = worker("w", Preference.BOTH)
    pace = pace_of(seen, 0, 0.0, 1000.0)
    queue = [1500, 800, 4000]
    alone = prefill_times([2000], pace)[0]
    done = time_behind(queue, 2000, start, pace)
    assert done >= start + alone
    if start == 0.0:
        assert done == pytest.approx(prefill_times([*queue, 2000], pace)[-1])
    if start == 10.0:
        assert done == pytest.approx(start + alone)
