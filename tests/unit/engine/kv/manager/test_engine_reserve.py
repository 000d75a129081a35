"""When pages are lent to a handoff, and what they wait for."""

from __future__ import annotations

from typing import Any

from engine.core.request import Request
from engine.loop.engine import Engine
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.engine.fake_runner import EOS, VOCAB, reference


def waits(engine: Engine) -> list[bool]:
    """Gets an entry for every wait for the step in flight."""
    assert engine._in_flight.launched is not None
    step: Any = engine._in_flight.launched.step
    seen: list[bool] = []
    result = step.result

    def watched() -> Any:
        seen.append(True)
        return result()

    step.result = watched
    return seen


def ends_with_its_first_token() -> list[int]:
    return next([a, b] for a in range(VOCAB) for b in range(VOCAB) if reference([a, b], 1) == [EOS])


def running(engine: Engine, prompt: list[int], max_tokens: int = 30) -> Request:
    """A request with a step in flight."""
    request = make_request(1, prompt, max_tokens, ignore_eos=True)
    engine.submit(request)
    engine.step()
    return request


def test_a_full_pool_is_detected_without_waiting_for_the_device() -> None:
    engine = make_engine(overlap=True, num_pages=8)
    running(engine, list(range(24)))
    seen = waits(engine)
    assert engine.reserve(make_request(2, list(range(30, 42)))) is None
    assert not seen


def test_pages_that_no_step_writes_are_lent_at_once() -> None:
    engine = make_engine(overlap=True, num_pages=16)
    running(engine, list(range(24)))
    seen = waits(engine)
    assert engine.reserve(make_request(2, list(range(30, 42)))) is not None
    assert not seen


def test_pages_of_an_aborted_request_are_lent_after_the_step_that_may_write_them() -> None:
    engine = make_engine(overlap=True, num_pages=8, chunk_budget=64, radix_cache=False)
    request = running(engine, list(range(24)))
    seen = waits(engine)
    engine.abort(request.id)
    reservation = engine.reserve(make_request(2, list(range(30, 60))))
    assert reservation is not None
    assert seen
    assert engine._in_flight.launched is not None
    assert engine._in_flight.launched.step.done()


def test_a_page_written_beyond_the_end_of_an_answer_is_lent_after_that_step() -> None:
    """With overlap, the token after the last is on the way when the last turns out to be the end."""
    engine = make_engine(overlap=True, num_pages=2, radix_cache=False)
    engine.submit(make_request(1, ends_with_its_first_token()))
    engine.step()
    engine.step()
    seen = waits(engine)
    assert engine.reserve(make_request(2, [1, 2, 3, 4, 5])) is not None
    assert seen


def test_pages_that_the_step_in_flight_only_reads_are_lent_at_once() -> None:
    engine = make_engine(overlap=True, num_pages=9, chunk_budget=16, radix_cache=False)
    request = running(engine, list(range(28)))
    engine.step()  # tokens [16, 28) are in flight, and pages of [0, 16) done with
    seen = waits(engine)
    engine.abort(request.id)
    assert engine.reserve(make_request(2, list(range(30, 42)))) is not None
    assert not seen


def test_pages_are_lent_while_prompts_wait_only_for_their_turn() -> None:
    engine = make_engine(num_pages=200, chunk_budget=8, radix_cache=False)
    for id in range(6):
        engine.submit(make_request(id, list(range(40))))
    engine.step()
    assert engine.stats().waiting
    assert engine.reserve(make_request(10, [1, 2, 3, 4, 5])) is not None


def test_no_pages_are_lent_while_a_prompt_waits_for_pages() -> None:
    engine = make_engine(num_pages=12, chunk_budget=64, radix_cache=False)
    engine.submit(make_request(1, list(range(24)), 30, ignore_eos=True))
    engine.submit(make_request(2, list(range(28)), 30, ignore_eos=True))
    engine.step()
    assert engine.stats().waiting == 1
    assert engine.reserve(make_request(10, [1, 2, 3, 4, 5])) is None


def test_a_page_of_a_preempted_request_is_lent_after_the_step_that_writes_it() -> None:
    """A request gives way to a handoff while its last token is computed, and its client leaves."""
    engine = make_engine(overlap=True, num_pages=6)
    request = running(engine, list(range(7)))
    assert engine.reserve(make_request(2, list(range(30, 42)))) is not None
    while request.num_computed < 12:
        engine.step()
    written = request.pages[-1]
    step: Any = engine.step_in_flight
    step._looks = 1_000_000
    seen = waits(engine)
    engine.step(block=False)
    assert request.slot < 0, "it was preempted"
    engine.abort(request.id)
    reservation = engine.reserve(make_request(3, [50, 51, 52]))
    assert reservation is not None
    assert reservation.incoming == [written]
    assert seen
