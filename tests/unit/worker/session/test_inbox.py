"""Messages to the engine thread."""

from __future__ import annotations

import threading
import time

import pytest

from worker.session.inbox import Inbox


def test_everything_posted_runs_in_order_in_one_go() -> None:
    inbox, seen = Inbox(), []
    for number in range(5):
        inbox.post(seen.append, number)
    assert inbox.run(timeout_s=0.0)
    assert seen == [0, 1, 2, 3, 4]
    assert not inbox.run(timeout_s=0.0)


def test_a_reader_that_waits_is_woken_by_a_post() -> None:
    inbox, seen = Inbox(), []
    poster = threading.Timer(0.05, inbox.post, args=(seen.append, 1))
    poster.start()
    began = time.monotonic()
    assert inbox.run(timeout_s=600.0)
    assert seen == [1]
    assert time.monotonic() - began < 300.0


def test_a_question_is_answered_with_what_its_function_returns_or_raises() -> None:
    inbox = Inbox()
    good, bad = inbox.ask(lambda: 42), inbox.ask(lambda: 1 // 0)
    inbox.run(timeout_s=0.0)
    assert good.result(0) == 42
    with pytest.raises(ZeroDivisionError):
        bad.result(0)


def test_what_a_post_raises_reaches_the_reader() -> None:
    inbox = Inbox()
    inbox.fail(RuntimeError("the transport broke"))
    with pytest.raises(RuntimeError, match="the transport broke"):
        inbox.run(timeout_s=0.0)


def test_a_dead_reader_refuses_questions_and_drops_the_rest() -> None:
    inbox, seen = Inbox(), []
    question = inbox.ask(lambda: 42)
    inbox.post(seen.append, 1)
    stops = iter([False, False, True])
    inbox.refuse(RuntimeError("dead"), until=lambda: next(stops))
    with pytest.raises(RuntimeError, match="dead"):
        question.result(0)
    assert seen == []


def test_a_question_that_ends_its_reader_is_answered_with_what_ended_it() -> None:
    inbox = Inbox()

    def leave() -> None:
        raise SystemExit(3)

    question = inbox.ask(leave)
    with pytest.raises(SystemExit):
        inbox.run(timeout_s=0.0)
    with pytest.raises(SystemExit):
        question.result(0)
