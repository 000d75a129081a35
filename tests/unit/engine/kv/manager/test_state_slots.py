"""Prefix hits, preemption and eviction where a request has a recurrent state."""

from __future__ import annotations

from typing import Any

from engine.kv.cache.pages import PageCounts
from engine.loop.engine import Engine
from tests.unit.engine.engines import deliver, make_engine, make_request, run
from tests.unit.engine.fake_runner import reference

SHARED = [5, 6, 7, 8] * 5


def slots(engine: Engine) -> PageCounts:
    return engine.kv.states.pool.counts()


def cached_tokens(engine: Engine, id: int, prompt: list[int], **sampling: Any) -> int | None:
    request = make_request(id, prompt, ignore_eos=True, **sampling)
    run(engine, request)
    assert request.output == reference(prompt, request.sampling.max_tokens, ignore_eos=True)
    return request.num_cached


def test_a_prompt_that_begins_with_an_earlier_one_continues_at_its_last_page() -> None:
    engine = make_engine(num_state_slots=4)
    prompt = list(range(22))
    assert cached_tokens(engine, 1, prompt) == 0
    assert cached_tokens(engine, 2, prompt) == 20
    assert cached_tokens(engine, 3, [*prompt, 1, 2, 3]) == 20
    assert slots(engine).held == 0


def test_a_prompt_is_reused_as_far_as_a_checkpoint_not_as_far_as_its_pages() -> None:
    """The second prompt shows where prompts branch; a checkpoint there is of use to the third."""
    engine = make_engine(num_state_slots=8)
    assert cached_tokens(engine, 1, [*SHARED, *range(30, 40)]) == 0
    assert cached_tokens(engine, 2, [*SHARED, *range(40, 50)]) == 0
    assert cached_tokens(engine, 3, [*SHARED, *range(50, 60)]) == 20


def test_the_last_page_boundary_of_a_whole_number_of_pages_leaves_a_token_to_compute() -> None:
    engine = make_engine(num_state_slots=4)
    assert cached_tokens(engine, 1, list(range(16))) == 0
    assert cached_tokens(engine, 2, list(range(16))) == 12


def test_the_least_recently_used_checkpoint_makes_room_for_a_request() -> None:
    engine = make_engine(num_state_slots=3, num_pages=256)
    first, second = list(range(10)), list(range(20, 30))
    cached_tokens(engine, 1, first)
    cached_tokens(engine, 2, second)
    assert (slots(engine).free, slots(engine).cached) == (1, 2)
    cached_tokens(engine, 3, first)
    cached_tokens(engine, 4, list(range(40, 50)))
    assert cached_tokens(engine, 5, first) == 8
    assert cached_tokens(engine, 6, second) == 0


def test_a_checkpoint_stays_until_the_request_that_continues_it_has_read_it() -> None:
    engine = make_engine(num_state_slots=3, chunk_budget=64)
    prompt = list(range(22))
    cached_tokens(engine, 1, prompt)
    other = make_request(2, list(range(50, 60)), ignore_eos=True)
    continued = make_request(3, [*prompt, *range(30)], ignore_eos=True)
    run(engine, other, continued)  # in one step, whose first chunk would save a checkpoint of its own
    assert continued.num_cached == 20
    assert continued.output == reference(continued.prompt, 8, ignore_eos=True)


def test_one_slot_serves_one_request_after_the_other() -> None:
    engine = make_engine(num_state_slots=1)
    requests = [make_request(i, list(range(i, i + 9)), ignore_eos=True) for i in range(4)]
    run(engine, *requests)
    assert [r.output for r in requests] == [reference(r.prompt, 8, ignore_eos=True) for r in requests]
    assert engine.stats().preemptions == 0


def test_checkpoints_go_with_the_pages_they_are_for() -> None:
    engine = make_engine(num_state_slots=6, num_pages=16)
    for id in range(6):
        cached_tokens(engine, id, list(range(10 * id, 10 * id + 40)))
    engine.check_pages()
    assert slots(engine).cached <= 2, "no more prompts fit into the pages"


def test_a_preempted_request_continues_behind_its_prompt() -> None:
    engine = make_engine(num_state_slots=6, chunk_budget=64)
    engine.submit(late := make_request(9, list(range(17)), max_tokens=8, ignore_eos=True))
    engine.step()
    engine.scheduler.preempt(late)
    assert late.state is None
    assert slots(engine).held == 0
    while engine.has_work:
        engine.step()
    assert late.output == reference(late.prompt, 8, ignore_eos=True)
    chunks = [chunk for step in engine.runner.steps for chunk in step if chunk[0] == 9]  # type: ignore[attr-defined]
    assert [start for _, start, _ in chunks[:2]] == [0, 16]


def test_a_peer_writes_the_state_of_a_request_whose_prefix_has_no_checkpoint() -> None:
    engine = make_engine(num_state_slots=4)
    cached_tokens(engine, 1, [*SHARED, 1, 2, 3, 4, 5])
    request = make_request(2, [*SHARED, 9, 9, 9], ignore_eos=True)
    reservation = engine.reserve(request)
    assert reservation is not None
    assert reservation.first_token == 20, "its pages are here"
    assert slots(engine).in_flight == 1
    deliver(engine, request, reservation)
    while engine.has_work:
        engine.step()
    assert request.output == reference(request.prompt, 8, ignore_eos=True)


def test_a_slot_that_a_peer_may_still_write_is_not_reused() -> None:
    engine = make_engine(num_state_slots=1)
    reservation = engine.reserve(make_request(1, SHARED))
    assert reservation is not None
    engine.kv.quarantine(reservation)
    assert slots(engine).quarantined == 1
    assert engine.reserve(make_request(2, SHARED)) is None
    engine.kv.free_reservation(reservation)
    assert slots(engine).free == 1


def test_without_a_radix_cache_there_are_no_checkpoints() -> None:
    engine = make_engine(num_state_slots=4, radix_cache=False)
    cached_tokens(engine, 1, list(range(22)))
    assert slots(engine).free == 4


def test_a_chunk_of_one_token_books_no_checkpoint() -> None:
    """With pages of one token, the pages of the first two prompts go on one token behind a checkpoint."""
    engine = make_engine(page_size=1, num_pages=512, chunk_budget=64, num_state_slots=12)
    prompt = [(11 * i) % 89 for i in range(20)]
    assert cached_tokens(engine, 1, prompt) == 0
    assert cached_tokens(engine, 2, [*prompt, 50, 51]) == 19
    assert cached_tokens(engine, 3, [*prompt, 60, 61, 62]) == 19
    assert cached_tokens(engine, 4, [*prompt, 50, 51, 62]) == 21
