"""KV of a request whose logits were not finite does not stay in the cache, however the request ended."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.request import Request
from engine.loop.engine import Engine
from engine.loop.hooks import NO_HOOKS
from tests.unit.engine.engines import KeepPages, make_engine, make_request, run
from tests.unit.engine.fake_runner import reference

PROMPT = list(range(12))


def poisoned(hooks: Any = NO_HOOKS) -> tuple[Engine, Request]:
    """An engine and a request whose first step, which is in flight, gives logits that are not finite."""
    engine = make_engine(hooks, overlap=True)
    runner: Any = engine.runner
    runner.fails = {1}
    request = make_request(1, PROMPT)
    engine.submit(request)
    engine.step()
    return engine, request


def finish(engine: Engine) -> list[int]:
    """Runs what is there; ids of those that failed."""
    failed = []
    while engine.has_work:
        failed += [request.id for request, _ in engine.step().failed]
        engine.check_pages()
    return failed


def computes_anew(engine: Engine) -> None:
    again = make_request(9, [*PROMPT, 50])
    run(engine, again)
    assert again.num_cached == 0
    assert again.output == reference(again.prompt, 8)


def test_of_a_request_that_was_preempted_in_flight() -> None:
    engine, request = poisoned()
    engine.scheduler.preempt(request)
    assert finish(engine) == [1]
    computes_anew(engine)


def test_of_a_request_that_was_aborted_in_flight() -> None:
    engine, request = poisoned()
    engine.abort(request.id)
    assert finish(engine) == []
    computes_anew(engine)


def test_of_an_aborted_request_whose_pages_are_kept() -> None:
    engine, request = poisoned(KeepPages())
    engine.abort(request.id)
    finish(engine)
    engine.release(request)
    engine.hooks = NO_HOOKS
    computes_anew(engine)


def test_of_others_that_built_on_it() -> None:
    """They read the cache before the step came back, and ended: what they left there goes as well."""
    engine, request = poisoned()
    engine.scheduler.preempt(request)
    builder = make_request(2, [*PROMPT, *range(20, 32)])
    engine.submit(builder)
    engine.scheduler.plan()  # reads the cache
    assert builder.num_cached == 12
    engine.abort(builder.id)
    assert engine.check_pages().cached > 3
    assert finish(engine) == [1]
    assert engine.check_pages().cached == 0


@pytest.mark.parametrize("max_tokens", [1, 8])
def test_but_what_others_read_stays_theirs(max_tokens: int) -> None:
    engine = make_engine()
    other = make_request(2, [*range(4), *range(60, 70)], max_tokens=60, ignore_eos=True)
    engine.submit(other)
    engine.step()
    runner: Any = engine.runner
    runner.fails = {1}
    engine.submit(make_request(1, PROMPT, max_tokens))
    assert finish(engine) == [1]
    assert other.output == reference(other.prompt, 60, ignore_eos=True)
