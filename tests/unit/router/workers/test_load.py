"""What the router knows of a worker between two of its reports."""

from __future__ import annotations

from router.workers.capacity import Rank
from router.workers.load import WorkerLoad
from rpc.baton.v1 import worker_pb2


def report(**numbers: int) -> worker_pb2.Load:
    return worker_pb2.Load(total_pages=100, **numbers)


def test_a_request_that_ended_leaves_no_load() -> None:
    load = WorkerLoad()
    load.add(10)
    load.add(20)
    assert not load.idle.is_set()
    load.remove(10)
    load.remove(20)
    assert (load.requests, load.tokens) == (0, 0)
    assert load.idle.is_set()


def test_what_was_sent_counts_until_a_report_covers_it() -> None:
    load = WorkerLoad(page_size=16)
    load.sent(1, 160)
    load.sent(4, 16)
    load.report(report(free_pages=100), 0)
    assert (load.view().promised, load.view().promised_pages) == (2, 11 + 2)
    load.report(report(free_pages=90, incoming=1), 3)
    view = load.view()
    assert (view.promised, view.promised_pages) == (1, 2)
    assert (view.free_pages, view.incoming) == (90, 1)
    load.report(report(free_pages=89, incoming=2), 4)
    assert (load.view().promised, load.view().promised_pages) == (0, 0)


def test_a_promise_counts_until_it_is_withdrawn() -> None:
    load = WorkerLoad(page_size=16)
    pages = load.promise(32)
    load.report(report(), 1_000)  # no report covers what was not sent
    assert (load.view().promised, load.view().promised_pages) == (1, 3)
    load.withdraw(pages)
    assert (load.view().promised, load.view().promised_pages) == (0, 0)


def test_the_share_of_pages_that_are_not_cached_follows_the_last_reservations() -> None:
    load = WorkerLoad(page_size=16)
    load.report(report(free_pages=5), 0)
    assert not load.view().has_room(160)
    for _ in range(50):
        load.reserved(1, 160)
    assert load.view().has_room(160)
    load.sent(1, 160)
    assert load.view().promised_pages == 2
    for _ in range(50):
        load.reserved(10, 160)
    assert not load.view().has_room(160)


def test_a_view_has_the_rank_that_the_caller_gives_it() -> None:
    assert WorkerLoad().view(Rank.LATE).rank is Rank.LATE
