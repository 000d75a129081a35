"""Who has room for a request, and who gets it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.workers.capacity import (
    Choose,
    Rank,
    WorkerView,
    any_has_room,
    least_loaded,
    place,
    preferred,
    round_robin,
)

EMPTY = WorkerView(page_size=16, max_running=8, total_pages=100, free_pages=100)

views = st.builds(
    WorkerView,
    rank=st.sampled_from(Rank),
    requests=st.integers(0, 5),
    tokens=st.integers(0, 500),
    page_size=st.sampled_from([1, 16]),
    max_running=st.integers(0, 8),
    total_pages=st.integers(0, 100),
    free_pages=st.integers(0, 100),
    running=st.integers(0, 8),
    starved=st.integers(0, 1),
    incoming=st.integers(0, 3),
    queued_handoffs=st.integers(0, 3),
    queued_pages=st.integers(0, 50),
    promised=st.integers(0, 3),
    promised_pages=st.integers(0, 50),
    fresh_share=st.floats(0.01, 1.0),
)
sizes = st.integers(1, 2000)
policies: st.SearchStrategy[Choose] = st.sampled_from([least_loaded, round_robin])


@pytest.mark.parametrize(("tokens", "pages"), [(1, 2), (16, 2), (17, 3), (160, 11)])
def test_a_request_takes_its_pages_and_one_to_grow_into(tokens: int, pages: int) -> None:
    assert EMPTY.pages_for(tokens) == pages


def test_a_request_that_fills_a_pool_alone_waits_for_no_more_than_the_pool() -> None:
    assert EMPTY.has_room(1600)
    assert not replace(EMPTY, free_pages=99).has_room(1600)


def test_quarantined_pages_are_waited_for_by_nobody() -> None:
    """A request that they leave no room for fits nowhere; one that fits waits for the other pages only."""
    worker = replace(EMPTY, free_pages=90, quarantined_pages=10)
    assert worker.fits(1440)
    assert worker.has_room(1440)
    assert not worker.fits(1441)
    assert not worker.has_room(1441)
    assert EMPTY.fits(10_000), "the worker refuses what exceeds its pool"


def test_a_request_goes_to_a_worker_that_it_fits_whatever_its_rank() -> None:
    late = replace(EMPTY, rank=Rank.LATE)
    ill = replace(EMPTY, free_pages=50, quarantined_pages=50)
    assert preferred([ill, late], 1000) == [1]
    assert preferred([ill], 1000) == []
    assert place([ill], 1000, least_loaded, 0) == 0


def test_pages_that_are_cached_need_no_room() -> None:
    crowded = replace(EMPTY, free_pages=10)
    assert not crowded.has_room(320)
    assert replace(crowded, fresh_share=0.25).has_room(320)


def test_a_worker_without_a_report_counts_as_having_room() -> None:
    assert WorkerView(page_size=16, promised=100, promised_pages=100).has_room(10_000)


@pytest.mark.parametrize(
    "load",
    [
        {"free_pages": 2},
        {"starved": 1},
        {"running": 8},
        {"running": 5, "incoming": 1, "queued_handoffs": 1, "promised": 1},
        {"queued_handoffs": 1, "queued_pages": 98},
        {"promised": 1, "promised_pages": 98},
        {"queued_handoffs": 1, "queued_pages": 48, "promised": 1, "promised_pages": 49},
    ],
)
def test_pages_slots_queues_and_what_is_on_its_way_all_count(load: dict[str, int]) -> None:
    assert EMPTY.has_room(32)
    assert not replace(EMPTY, **load).has_room(32)  # type: ignore[arg-type]


def test_every_request_that_is_there_keeps_a_page_to_grow_into() -> None:
    busy = replace(EMPTY, running=3, incoming=1)
    assert replace(busy, free_pages=7).has_room(32)
    assert not replace(busy, free_pages=6).has_room(32)


def test_a_worker_with_room_is_chosen_before_a_less_loaded_one_without() -> None:
    full = replace(EMPTY, free_pages=1, tokens=0)
    roomy = replace(EMPTY, tokens=1000, requests=3)
    for choose in (least_loaded, round_robin):
        for turn in range(2):
            assert place([full, roomy], 32, choose, turn) == 1
    assert not any_has_room([full, full], 32)
    assert any_has_room([full, roomy], 32)


def test_without_room_anywhere_the_policy_decides() -> None:
    full = replace(EMPTY, free_pages=1)
    assert place([replace(full, tokens=5), full], 32, least_loaded, 0) == 1


def test_a_worker_that_failed_the_request_gets_it_only_if_there_is_no_other() -> None:
    failed, suspect = replace(EMPTY, rank=Rank.AVOIDED), replace(EMPTY, rank=Rank.SUSPECT, tokens=10_000)
    assert place([failed, suspect], 32, least_loaded, 0) == 1
    assert place([failed], 32, least_loaded, 0) == 0


def test_a_late_worker_gets_a_request_only_if_all_are_late() -> None:
    late, failed = replace(EMPTY, rank=Rank.LATE), replace(EMPTY, rank=Rank.AVOIDED)
    assert place([late, failed], 32, least_loaded, 0) == 1
    assert preferred([late, late], 32) == [0, 1]


def test_room_on_a_worker_that_would_not_be_chosen_is_no_room() -> None:
    """Else a request is let in, and queues on the worker that is preferred."""
    full, late = replace(EMPTY, free_pages=1), replace(EMPTY, rank=Rank.LATE)
    assert not any_has_room([full, late], 32)


def test_without_workers_there_is_nothing_to_wait_for() -> None:
    assert any_has_room([], 32)


@given(st.lists(views, min_size=1, max_size=6), sizes, policies, st.integers(0, 20))
def test_the_choice_is_among_the_preferred_and_has_room_if_any_of_them_has(
    workers: list[WorkerView], tokens: int, choose: Choose, turn: int
) -> None:
    chosen = workers[place(workers, tokens, choose, turn)]
    assert chosen.rank is min(worker.rank for worker in workers)
    assert chosen.has_room(tokens) == any_has_room(workers, tokens)


@given(views, sizes, sizes)
def test_what_has_room_for_a_request_has_room_for_a_smaller_one(
    worker: WorkerView, one: int, other: int
) -> None:
    small, large = sorted((one, other))
    assert worker.has_room(small) or not worker.has_room(large)


@given(views, sizes, st.sampled_from(["running", "incoming", "queued_pages", "promised", "promised_pages"]))
def test_more_load_never_makes_room(worker: WorkerView, tokens: int, field: str) -> None:
    more = replace(worker, **{field: getattr(worker, field) + 1})
    assert worker.has_room(tokens) or not more.has_room(tokens)


@given(st.integers(1, 100), st.integers(1, 16), st.integers(1, 400))
def test_an_idle_worker_with_all_its_pages_has_room_for_all_that_fits(
    pages: int, page_size: int, tokens: int
) -> None:
    worker = WorkerView(page_size=page_size, max_running=1, total_pages=pages, free_pages=pages)
    assert worker.has_room(min(tokens, pages * page_size))


@given(st.lists(sizes, max_size=50), st.integers(1, 3))
def test_requests_are_let_in_until_all_pages_are_promised_and_never_beyond(
    requests: list[int], count: int
) -> None:
    """A healthy cluster is not throttled: whatever fits is let in."""
    workers = [replace(EMPTY, max_running=0) for _ in range(count)]
    for tokens in requests:
        fits = any(w.pages_for(tokens) + w.promised_pages <= w.free_pages for w in workers)
        assert any_has_room(workers, tokens) == fits
        if not fits:
            continue
        i = place(workers, tokens, least_loaded, 0)
        taken = workers[i].promised_pages + workers[i].pages_for(tokens)
        workers[i] = replace(workers[i], promised=workers[i].promised + 1, promised_pages=taken)
        assert taken <= workers[i].free_pages
