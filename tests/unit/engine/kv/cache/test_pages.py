from __future__ import annotations

import pytest

from engine.kv.cache.pages import OutOfPages, PageError, PagePool, PageState


def test_a_fresh_pool_hands_out_ascending_runs() -> None:
    assert PagePool(8).take(3, owner=1) == [0, 1, 2]


def test_what_is_not_there_is_not_taken_in_part() -> None:
    pool = PagePool(4)
    pool.take(3, owner=1)
    with pytest.raises(OutOfPages, match="2 pages wanted, 1 of 4"):
        pool.take(2, owner=2)
    assert pool.num_free == 1


def test_only_the_owner_may_move_a_page() -> None:
    pool = PagePool(4)
    pages = pool.take(2, owner=1)
    with pytest.raises(PageError, match="HELD of 1"):
        pool.give_back(pages, owner=2)


def test_a_page_is_not_given_back_twice() -> None:
    pool = PagePool(4)
    [page] = pool.take(1, owner=1)
    with pytest.raises(PageError):
        pool.give_back([page, page], owner=1)


def test_a_page_that_a_peer_may_write_is_neither_cached_nor_silently_reused() -> None:
    pool = PagePool(4)
    pages = pool.take(2, owner=7, state=PageState.IN_FLIGHT)
    with pytest.raises(PageError):
        pool.to_cache(pages, owner=7)
    pool.quarantine(pages, handoff=7)
    with pytest.raises(PageError):
        pool.arrived(pages, handoff=7, request=7)
    assert pool.take(2, owner=8) == [2, 3]
    pool.give_back(pages, owner=7, state=PageState.QUARANTINED)
    assert pool.num_free == 2


def test_the_states_always_add_up() -> None:
    pool = PagePool(10)
    held = pool.take(4, owner=1)
    pool.to_cache(held[:2], owner=1)
    pool.take(3, owner=2, state=PageState.IN_FLIGHT)
    counts = pool.counts()
    assert (counts.free, counts.held, counts.cached, counts.in_flight) == (3, 2, 2, 3)
    assert counts == pool.recount()
