"""What requests on a common cached prefix give back when they end: only what each holds alone."""

from __future__ import annotations

import pytest

from engine.core.request import Request
from engine.loop.engine import Engine
from engine.sched.presets import Preset
from tests.unit.engine.engines import make_engine, make_request, run
from tests.unit.engine.sched.planning import Planner
from tests.unit.engine.sched.planning import request as prompt_of

PAGE = 4
PREFIX = 62
"""Pages that all have in common."""
OWN = 2
"""Pages that the rest of a prompt takes."""
PEAK = 232
"""Most pages of 64 requests, eight each that grow by 1, 3, .. 15 pages: at 7 pages, 40 are left and 24 have
given back 2 pages each: 40 * 7 - 24 * 2.
"""


def crowd() -> list[Request]:
    prefix = [i % 90 for i in range(PREFIX * PAGE)]
    return [
        make_request(id, prefix + [id] * OWN * PAGE, max_tokens=(1 + 2 * (id // 8)) * PAGE, ignore_eos=True)
        for id in range(64)
    ]


def engine_with_cached_prefix(headroom: int) -> Engine:
    engine = make_engine(
        page_size=PAGE, num_pages=PREFIX + 64 * OWN + headroom, chunk_budget=1024, max_running_requests=64
    )
    run(engine, make_request(1000, [*crowd()[0].prompt[: PREFIX * PAGE], 91], max_tokens=1))
    return engine


def test_pages_after_a_common_cached_prefix_are_computed_once() -> None:
    engine = make_engine(page_size=PAGE, chunk_budget=64)
    cached = list(range(12))
    run(engine, make_request(1, [*cached, 91], max_tokens=1))
    before = engine.stats().prompt_tokens
    both = [*cached, *range(50, 62)]

    engine.submit(make_request(2, [*both, 1, 2], max_tokens=1))
    engine.submit(make_request(3, [*both, 3, 4], max_tokens=1))
    output = engine.step()
    assert (len(output.started), output.num_prompts, output.num_single) == (2, 1, 0)
    run(engine)

    assert engine.stats().prompt_tokens - before == 12 + 2 + 2


@pytest.mark.parametrize("is_cached", [False, True])
def test_equal_pages_after_different_prefixes_are_computed_side_by_side(is_cached: bool) -> None:
    planned = Planner(Preset.BATON, page_size=PAGE, radix_cache=True, long_prefill_token_threshold=PAGE)
    first, second = [1] * PAGE, [2] * PAGE
    if is_cached:
        planned.submit(prompt_of(8, PAGE + 1, prefix=first), prompt_of(9, PAGE + 1, prefix=second))
        planned.chunks(8, 9)
    same = [3] * 2 * PAGE

    planned.submit(*(prompt_of(id, 13, prefix=[*page, *same]) for id, page in ((1, first), (2, second))))

    assert all(first == second for first, second in planned.chunks(1, 2))


def test_a_chunk_of_an_earlier_admission_does_not_cache_pages_of_the_next() -> None:
    planned = Planner(
        Preset.BATON, page_size=PAGE, num_pages=6, radix_cache=True, chunk_budget=2 * PAGE, context=24
    )
    scheduler, cache = planned.scheduler, planned.kv.cache
    each = prompt_of(1, 5 * PAGE)
    planned.submit(each)
    (before,) = scheduler.plan().chunks
    scheduler.preempt(each)
    reservation = planned.kv.reserve(prompt_of(9, 6 * PAGE - 1), headroom=0)  # evicts what was cached
    assert reservation is not None
    planned.kv.free_reservation(reservation)
    assert not scheduler.plan().chunks
    assert (each.slot, each.num_computed) == (0, 0), "admitted again; its first page is in flight"

    scheduler.complete(before)
    assert not cache.match(each.tokens(0, 5 * PAGE), cache.root()).pages

    (again,) = scheduler.plan().chunks
    assert (again.start, again.end) == (0, 2 * PAGE)
    scheduler.complete(again)
    assert len(cache.match(each.tokens(0, 5 * PAGE), cache.root()).pages) == 2


def test_a_common_prefix_is_not_counted_as_given_back_by_each() -> None:
    engine = engine_with_cached_prefix(PEAK)
    for request in crowd():
        engine.submit(request)
    engine.step()
    assert len(engine.scheduler.running) == 64, "there is room for what they need at the worst moment"
    run(engine)
    assert engine.stats().preemptions == 0


def test_requests_on_a_common_prefix_wait_rather_than_preempt_each_other() -> None:
    engine = engine_with_cached_prefix(PEAK - 1)
    for request in crowd():
        engine.submit(request)
    engine.step()
    assert len(engine.scheduler.running) == 63
    run(engine)
    assert engine.stats().preemptions == 0


def test_the_first_reader_of_a_prefix_counts_it_no_more_when_others_come() -> None:
    engine = engine_with_cached_prefix(PEAK - 20)
    first, *others = crowd()
    engine.submit(first)
    engine.step()
    for request in others:
        engine.submit(request)
    run(engine)
    assert engine.stats().preemptions == 0


def test_a_prefix_with_one_reader_is_given_back_by_that_one() -> None:
    engine = engine_with_cached_prefix(PEAK)
    first, second = crowd()[:2]
    engine.submit(first)
    engine.step()
    assert engine.kv.pages_alone(first) == PREFIX + OWN
    engine.submit(second)
    engine.step()
    assert engine.kv.pages_alone(first) == OWN + 1, "its answer takes a page by now"
    assert engine.kv.pages_alone(second) == OWN
    engine.abort(first.id)
    assert engine.kv.pages_alone(second) == PREFIX + OWN
