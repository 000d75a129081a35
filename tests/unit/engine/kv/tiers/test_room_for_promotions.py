"""KV that comes up from tiers while the pool is nearly full."""

from __future__ import annotations

from engine.core.request import Request
from tests.unit.engine.engines import make_request
from tests.unit.engine.fake_runner import reference
from tests.unit.engine.kv.tiers.tiered import Tiered

FIRST, SECOND = list(range(1, 25)), list(range(25, 49))
"""Six pages each."""


def with_copies(num_pages: int) -> Tiered:
    """FIRST and SECOND are in host memory alone."""
    tiered = Tiered(num_pages=num_pages)
    others = [[token + number for token in range(50, 74)] for number in range(4)]
    for number, prompt in enumerate([FIRST, SECOND, *others]):
        tiered.answer(make_request(number, prompt, 2))
    for prompt in (FIRST, SECOND):
        assert tiered.engine.kv.cached_tokens(make_request(99, [*prompt, 90], 2)) == 0
    return tiered


def finish(tiered: Tiered, *requests: Request) -> None:
    for _ in range(1000):
        if not tiered.engine.has_work:
            break
        tiered.engine.step()
        tiered.engine.check_pages()
        tiered.copier.work(disk=False)
    for request in requests:
        assert request.output == reference(request.prompt, request.sampling.max_tokens)
    tiered.copy_all()


def test_a_request_takes_no_room_for_cached_pages_that_a_running_request_reads() -> None:
    tiered = Tiered(num_pages=20)
    tiers, prompt = tiered.engine.kv.tiers, [77] * 24
    assert tiers is not None
    running, sharing = make_request(7, prompt, 8), make_request(8, [*prompt, 90], 2)
    assert tiers.prospect(sharing, 20, 0.0).takes == 7
    tiered.engine.submit(running)
    while not running.output:
        tiered.engine.step()
    assert tiers.prospect(sharing, 20, 0.0).takes == 1
    finish(tiered, running)
    assert tiers.prospect(sharing, 20, 0.0).takes == 7, "they could be evicted"


def test_a_request_waits_for_pages_rather_than_compute_what_is_on_a_tier() -> None:
    """KV that has come up for a longer request, which waits behind it, gives way."""
    tiered = with_copies(num_pages=13)
    running = make_request(7, [5, 5, 5], 8)
    tiered.engine.submit(running)
    tiered.engine.step()
    longer, again = make_request(8, [*FIRST, *range(78, 90)], 2), make_request(9, [*SECOND, 90], 2)
    tiered.engine.submit(longer)
    tiered.engine.step()
    tiered.engine.submit(again)
    tiered.engine.step()
    assert {longer, again} == set(tiered.engine.scheduler.waiting)
    finish(tiered, running, longer, again)
    assert again.num_cached == len(SECOND)


def test_kv_comes_up_as_soon_as_a_request_has_come_before_the_next_step_is_planned() -> None:
    tiered = with_copies(num_pages=13)
    running, again = make_request(8, [5, 5, 5], 4), make_request(9, [*FIRST, 90], 2)
    tiered.engine.submit(running)
    tiered.engine.step()
    tiered.engine.submit(again)
    tiered.engine.poll_tiers()
    tiered.copier.work(disk=False)
    tiered.engine.step()
    assert again not in list(tiered.engine.scheduler.waiting), "it joins the very next step"
    assert again.num_cached == len(FIRST)
    finish(tiered, running, again)
