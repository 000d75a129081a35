"""The engine's thread: in which order a turn does things."""

from __future__ import annotations

import math
import queue
import time
from typing import Any
from unittest.mock import Mock

import pytest

from engine.core.events import StepOutput
from engine.core.request import PENDING
from engine.loop.engine import Engine
from engine.loop.hooks import NO_HOOKS
from tests.unit.engine.engines import KeepPages, make_engine, make_request, run
from tests.unit.engine.fake_runner import reference
from worker.process.engine_loop import EngineDied, EngineLoop, StepWaker
from worker.session.inbox import Inbox


def make_loop(engine: Engine) -> EngineLoop:
    """Without a thread: the test runs its turns. It is always late enough to plan the next step."""
    handler = Mock()
    handler.next_wakeup.return_value = math.inf
    return EngineLoop(engine, handler, Mock(), Mock(), Mock(), clock=lambda: 1e12, on_death=Mock())


def a_message_came(loop: EngineLoop) -> None:
    loop._settled = loop._pages_checked = False


def turns_until_sleep(loop: EngineLoop) -> None:
    for _ in range(100):
        loop._turn()
        if loop._wait_s() is None:
            return
    raise AssertionError("it never sleeps")


def overlapping(hooks: Any = NO_HOOKS) -> Engine:
    return make_engine(hooks, overlap=True, chunk_budget=8)


def test_a_request_that_waits_for_the_page_of_an_aborted_one_continues() -> None:
    """The step in flight completes without any output: what waited for it has to be looked at again."""
    engine = overlapping(KeepPages())
    loop = make_loop(engine)
    prompt = list(range(20))
    aborted, waiting = make_request(1, prompt), make_request(2, prompt)
    engine.submit(aborted)
    loop._turn()
    engine.abort(aborted.id)
    engine.submit(waiting)
    a_message_came(loop)
    turns_until_sleep(loop)
    assert waiting.output == reference(prompt, 8)
    assert not engine.has_work
    engine.release(aborted)
    engine.release(waiting)
    engine.check_pages()


def test_a_request_does_not_wait_for_the_same_page_behind_another_prefix() -> None:
    engine = overlapping()
    first, second = list(range(8)), list(range(8, 16))
    for id, prefix in enumerate([first, second]):
        run(engine, make_request(id, [*prefix, 90], max_tokens=1))
    page = [1, 2, 3, 4, 5]
    aborted, other = make_request(2, first + page), make_request(3, second + page)
    loop = make_loop(engine)
    engine.submit(aborted)
    loop._turn()
    engine.abort(aborted.id)
    engine.submit(other)
    a_message_came(loop)
    loop._turn()
    runner: Any = engine.runner
    assert runner.steps[-1] == [(3, 8, 5)], "it is planned in the very next step"
    turns_until_sleep(loop)
    assert other.output == reference(second + page, 8)
    assert not engine.has_work


def test_tokens_are_sent_before_the_rest_of_the_next_step_is_enqueued() -> None:
    parts = Mock()
    parts.engine.plan_at.return_value = -math.inf
    parts.engine.step.return_value = StepOutput(started=[], num_tokens=1)
    loop = EngineLoop(
        parts.engine,
        parts.handler,
        parts.inbox,
        parts.outbox,
        parts.metrics,
        clock=lambda: 0.0,
        on_death=parts.on_death,
    )
    loop._turn()
    calls = [name for name, *_ in parts.method_calls]
    order = ["engine.step", "handler.on_step", "outbox.flush", "engine.proceed"]
    assert [name for name in calls[calls.index("engine.step") :] if name in order] == order


def test_a_request_that_comes_while_the_last_step_runs_is_planned_before_that_step_ends() -> None:
    """The device goes from one step to the next, and is not idle while the host hears of the first."""
    engine = overlapping()
    runner: Any = engine.runner
    runner.looks = 10**6
    loop, inbox = make_loop(engine), Inbox()
    loop._inbox = inbox
    loop._waker = StepWaker(inbox)
    first, second = make_request(1, [5, 6, 7], max_tokens=1), make_request(2, [8, 9], max_tokens=1)
    engine.submit(first)
    loop._turn()
    loop._turn()
    assert first.output == [PENDING], "nothing is left to plan, and the loop did not wait for the step"
    assert inbox.run(10.0), "the end of the step wakes the loop"
    engine.submit(second)
    loop._turn()
    assert runner.steps[-1] == [(2, 0, 2)]
    runner.looks = 0
    assert engine.step_in_flight is not None
    engine.step_in_flight._looks = 0  # type: ignore[attr-defined]
    turns_until_sleep(loop)
    assert [first.output, second.output] == [reference([5, 6, 7], 1), reference([8, 9], 1)]
    loop._waker.stop()
    engine.check_pages()


class Panic(BaseException):
    """As libraries in other languages raise: no Exception."""


@pytest.mark.parametrize("error", [Panic("at the disco"), SystemExit(1), RuntimeError("a bug")])
def test_every_kind_of_engine_failure_is_reported_at_once(error: BaseException) -> None:
    parts, inbox = Mock(), Inbox()
    parts.engine.config.device = "cpu"
    parts.engine.plan_at.return_value = -math.inf
    parts.engine.step.side_effect = error
    deaths: queue.SimpleQueue[EngineDied] = queue.SimpleQueue()
    loop = EngineLoop(
        parts.engine,
        parts.handler,
        inbox,
        parts.outbox,
        parts.metrics,
        clock=time.monotonic,
        on_death=deaths.put,
    )
    loop.start()
    death = deaths.get(timeout=10.0)
    assert type(error).__name__ in str(death)
    parts.outbox.fail.assert_called_once()
    question = inbox.ask(lambda: 42)
    with pytest.raises(EngineDied):
        question.result(10.0)
    loop.stop()
