"""Whether a worker has room for a request."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kv_groups import RequestPages
from router.placement.account.room import Room

EMPTY = Room(pages=RequestPages(16), max_running=8, total_pages=100, free_pages=100)
rooms = st.builds(
    Room,
    pages=st.sampled_from([RequestPages(), RequestPages(16), RequestPages(4, (sys.maxsize, 3, 3))]),
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


def test_pages_that_are_cached_need_no_room() -> None:
    crowded = replace(EMPTY, free_pages=10)
    assert not crowded.has_room(320)
    assert replace(crowded, fresh_share=0.25).has_room(320)


def test_a_worker_without_a_report_counts_as_having_room() -> None:
    assert Room(pages=RequestPages(16), promised=100, promised_pages=100).has_room(10_000)


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


@given(rooms, sizes, sizes)
def test_what_has_room_for_a_request_has_room_for_a_smaller_one(worker: Room, one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert worker.has_room(small) or not worker.has_room(large)


@given(rooms, sizes, st.sampled_from(["running", "incoming", "queued_pages", "promised", "promised_pages"]))
def test_more_load_never_makes_room(worker: Room, tokens: int, field: str) -> None:
    more = replace(worker, **{field: getattr(worker, field) + 1})
    assert worker.has_room(tokens) or not more.has_room(tokens)


@given(st.integers(1, 100), st.integers(1, 16), st.integers(1, 400))
def test_an_idle_worker_with_all_its_pages_has_room_for_all_that_fits(
    pages: int, page_size: int, tokens: int
) -> None:
    worker = Room(pages=RequestPages(page_size), max_running=1, total_pages=pages, free_pages=pages)
    assert worker.has_room(min(tokens, pages * page_size))


def test_a_group_with_a_window_takes_pages_for_its_window_alone() -> None:
    windows = replace(EMPTY, pages=RequestPages(16, (sys.maxsize, 5)))
    assert windows.pages_for(160) == 10 + 5 + 1
    assert replace(windows, free_pages=16).has_room(160)
    assert not replace(windows, free_pages=15).has_room(160)
