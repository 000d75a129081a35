"""Which worker gets a request, by load."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from router.placement.by_load import (
    Choose,
    Health,
    LoadView,
    any_has_room,
    least_loaded,
    place,
    preferred,
    round_robin,
)
from tests.unit.router.workers.test_room import EMPTY, rooms, sizes

IDLE = LoadView(room=EMPTY)
FULL = LoadView(room=replace(EMPTY, free_pages=1))

views = st.builds(
    LoadView,
    requests=st.integers(0, 5),
    tokens=st.integers(0, 500),
    health=st.sampled_from(Health),
    room=rooms,
)
policies: st.SearchStrategy[Choose] = st.sampled_from([least_loaded, round_robin])


def test_a_request_goes_to_a_worker_that_it_fits_whatever_its_health() -> None:
    late = replace(IDLE, health=Health.LATE)
    ill = LoadView(room=replace(EMPTY, free_pages=50, quarantined_pages=50))
    assert preferred([ill, late], 1000) == [1]
    assert preferred([ill], 1000) == []
    assert place([ill], 1000, least_loaded, 0) == 0


def test_a_worker_with_room_is_chosen_before_a_less_loaded_one_without() -> None:
    full, roomy = FULL, replace(IDLE, tokens=1000, requests=3)
    for choose in (least_loaded, round_robin):
        for turn in range(2):
            assert place([full, roomy], 32, choose, turn) == 1
    assert not any_has_room([full, full], 32)
    assert any_has_room([full, roomy], 32)


def test_without_room_anywhere_the_policy_decides() -> None:
    assert place([replace(FULL, tokens=5), FULL], 32, least_loaded, 0) == 1


def test_a_worker_that_failed_the_request_gets_it_only_if_there_is_no_other() -> None:
    failed, suspect = (
        replace(IDLE, health=Health.AVOIDED),
        replace(IDLE, health=Health.SUSPECT, tokens=10_000),
    )
    assert place([failed, suspect], 32, least_loaded, 0) == 1
    assert place([failed], 32, least_loaded, 0) == 0


def test_a_late_worker_gets_a_request_only_if_all_are_late() -> None:
    late, failed = replace(IDLE, health=Health.LATE), replace(IDLE, health=Health.AVOIDED)
    assert place([late, failed], 32, least_loaded, 0) == 1
    assert preferred([late, late], 32) == [0, 1]


def test_room_on_a_worker_that_would_not_be_chosen_is_no_room() -> None:
    """Else a request is let in, and queues on the worker that is preferred."""
    full, late = FULL, replace(IDLE, health=Health.LATE)
    assert not any_has_room([full, late], 32)


def test_without_workers_there_is_nothing_to_wait_for() -> None:
    assert any_has_room([], 32)


@given(st.lists(views, min_size=1, max_size=6), sizes, policies, st.integers(0, 20))
def test_the_choice_is_among_the_preferred_and_has_room_if_any_of_them_has(
    workers: list[LoadView], tokens: int, choose: Choose, turn: int
) -> None:
    chosen = workers[place(workers, tokens, choose, turn)]
    assert chosen.health is min(worker.health for worker in workers)
    assert chosen.room.has_room(tokens) == any_has_room(workers, tokens)


@given(st.lists(sizes, max_size=50), st.integers(1, 3))
def test_requests_are_let_in_until_all_pages_are_promised_and_never_beyond(
    requests: list[int], count: int
) -> None:
    """A healthy cluster is not throttled: whatever fits is let in."""
    workers = [LoadView(room=replace(EMPTY, max_running=0)) for _ in range(count)]
    for tokens in requests:
        fits = any(w.room.pages_for(tokens) + w.room.promised_pages <= w.room.free_pages for w in workers)
        assert any_has_room(workers, tokens) == fits
        if not fits:
            continue
        i = place(workers, tokens, least_loaded, 0)
        room = workers[i].room
        taken = room.promised_pages + room.pages_for(tokens)
        assert taken <= room.free_pages
        workers[i] = LoadView(room=replace(room, promised=room.promised + 1, promised_pages=taken))
