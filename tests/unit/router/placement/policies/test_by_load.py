"""Which worker gets a request, by load."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from router.placement import AdapterPlace, Health, RequestView, WorkerView
from router.placement.policies.by_load import (
    Choose,
    has_room,
    least_loaded,
    pick,
    preferred,
    prefix_aware,
    round_robin,
)
from tests.unit.router.placement.account.test_room import EMPTY, rooms, sizes
from tests.unit.router.placement.views import loaded

IDLE = loaded("idle", room=EMPTY)
FULL = loaded("full", room=replace(EMPTY, free_pages=1))

views = st.builds(
    loaded,
    st.text("abc", min_size=1),
    requests=st.integers(0, 5),
    tokens=st.integers(0, 500),
    health=st.sampled_from(Health),
    room=rooms,
)
policies: st.SearchStrategy[Choose] = st.sampled_from([least_loaded, round_robin])


def request(tokens: int, *avoid: WorkerView) -> RequestView:
    names = {worker.id for worker in avoid}
    return RequestView(prompt_tokens=tokens, expected_output=1, arrived=0.0, avoid=names)


def test_a_request_goes_to_a_worker_that_it_fits_whatever_its_health() -> None:
    late = replace(IDLE, health=Health.LATE)
    ill = loaded("ill", room=replace(EMPTY, free_pages=50, quarantined_pages=50))
    assert preferred([ill, late], request(1000)) == [late]
    assert preferred([ill], request(1000)) == []
    assert pick([ill], request(1000), least_loaded, 0) is ill


def test_a_worker_with_room_is_chosen_before_a_less_loaded_one_without() -> None:
    full, roomy = FULL, replace(IDLE, tokens=1000, requests=3)
    for choose in (least_loaded, round_robin):
        for turn in range(2):
            assert pick([full, roomy], request(32), choose, turn) is roomy
    assert not has_room([full, full], request(32))
    assert has_room([full, roomy], request(32))


def test_without_room_anywhere_the_policy_decides() -> None:
    assert pick([replace(FULL, tokens=5), FULL], request(32), least_loaded, 0) is FULL


def test_a_worker_that_failed_the_request_gets_it_only_if_there_is_no_other() -> None:
    suspect = replace(IDLE, id="suspect", health=Health.SUSPECT, tokens=10_000)
    assert pick([IDLE, suspect], request(32, IDLE), least_loaded, 0) is suspect
    assert pick([IDLE], request(32, IDLE), least_loaded, 0) is IDLE


def test_a_late_worker_gets_a_request_only_if_all_are_late() -> None:
    late = replace(IDLE, id="late", health=Health.LATE)
    assert pick([late, IDLE], request(32, IDLE, late), least_loaded, 0) is IDLE
    assert preferred([late, late], request(32)) == [late, late]


def test_room_on_a_worker_that_would_not_be_chosen_is_no_room() -> None:
    """Else a request is let in, and queues on the worker that is preferred."""
    assert not has_room([FULL, replace(IDLE, health=Health.LATE)], request(32))


@given(st.lists(views, min_size=1, max_size=6), sizes, policies, st.integers(0, 20))
def test_the_choice_is_among_the_preferred_and_has_room_if_any_of_them_has(
    workers: list[WorkerView], tokens: int, choose: Choose, turn: int
) -> None:
    chosen = pick(workers, request(tokens), choose, turn)
    assert chosen.health is min(worker.health for worker in workers)
    assert chosen.room.has_room(tokens) == has_room(workers, request(tokens))


@given(st.lists(sizes, max_size=50), st.integers(1, 3))
def test_requests_are_let_in_until_all_pages_are_promised_and_never_beyond(
    requests: list[int], count: int
) -> None:
    """A healthy cluster is not throttled: whatever fits is let in."""
    workers = [loaded(str(n), room=replace(EMPTY, max_running=0)) for n in range(count)]
    for tokens in requests:
        fits = any(w.room.pages_for(tokens) + w.room.promised_pages <= w.room.free_pages for w in workers)
        assert has_room(workers, request(tokens)) == fits
        if not fits:
            continue
        worker = pick(workers, request(tokens), least_loaded, 0)
        room = worker.room
        taken = room.promised_pages + room.pages_for(tokens)
        assert taken <= room.free_pages
        promised = replace(room, promised=room.promised + 1, promised_pages=taken)
        workers[int(worker.id)] = replace(worker, room=promised)


def test_requests_of_an_adapter_go_where_it_is_loaded_until_load_costs_more() -> None:
    """Loading it elsewhere is predicted to take as long as computing some 6,000 prompt tokens."""
    here, elsewhere = AdapterPlace(), AdapterPlace(load_s=0.15)
    asked = replace(request(100), adapter={"has": here, "lacks": elsewhere})
    lacks = loaded("lacks")
    for choose in (least_loaded, prefix_aware):
        for tokens, chosen in ((0, "has"), (3000, "has"), (20_000, "lacks")):
            workers = [loaded("has", tokens=tokens), lacks]
            assert pick(workers, asked, choose, 1).id == chosen
            assert pick(workers, request(100), choose, 1).id == "lacks"  # the next in turn, or less loaded


def test_a_worker_whose_slots_others_use_costs_half_an_answer() -> None:
    full = AdapterPlace(waits_for_slot=True)
    asked = replace(request(100), expected_output=200, adapter={"full": full, "lacks": AdapterPlace(0.05)})
    assert asked.adapter_wait_s(loaded("full")) > asked.adapter_wait_s(loaded("lacks")) == 0.05
    assert pick([loaded("full"), loaded("lacks")], asked, least_loaded, 0).id == "lacks"
