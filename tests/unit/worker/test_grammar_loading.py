"""Requests whose grammars are being compiled: they can be aborted, and no step waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from engine.errors import GrammarError
from engine.grammar.grammar import Grammar
from engine.grammar.matcher import Matcher
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.engine.engines import make_engine
from tests.unit.worker.handlers import Handled, handled


class SlowCompiler:
    """Compiles when it is told to."""

    def __init__(self) -> None:
        self.outcome: Any = None
        self.go = threading.Event()

    def kept(self, grammar: Grammar) -> Matcher | None:
        return None

    def matcher(self, grammar: Grammar) -> Matcher:
        assert self.go.wait(20.0)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        matcher: Matcher = self.outcome
        return matcher


@pytest.fixture
def compiler() -> Iterator[SlowCompiler]:
    slow = SlowCompiler()
    yield slow
    slow.go.set()


@pytest.fixture
def worker(compiler: SlowCompiler) -> Handled:
    engine: Any = make_engine()
    engine.grammars = compiler
    return handled(engine)


def begin(worker: Handled, timeout_s: float = 0.0) -> Any:
    """Submit request 1, with a grammar; returns its session."""
    session = Mock()
    worker.handler.open(session)
    grammar = sampling_pb2.Grammar(kind=sampling_pb2.GRAMMAR_KIND_REGEX, text="a")
    sampling = sampling_pb2.SamplingParams(max_tokens=3, grammar=grammar)
    work = worker_pb2.Work(request_id=1, prompt=[5], sampling=sampling, timeout_s=timeout_s)
    worker.handler.handle(session, worker_pb2.Command(submit=worker_pb2.Submit(work=work)), 0.0)
    assert not worker.engine.has_work
    assert 1 in worker.jobs
    return session


def failures(worker: Handled, session: Any) -> list[tuple[int, str]]:
    worker.outbox.flush(0)
    batches = [call.args[0] for call in session.send.call_args_list]
    return [(failed.code, failed.message) for batch in batches for failed in batch.failed]


def test_an_unknown_kind_of_grammar_fails_its_request_and_not_the_worker(worker: Handled) -> None:
    session = Mock()
    worker.handler.open(session)
    sampling = sampling_pb2.SamplingParams(max_tokens=3, grammar=sampling_pb2.Grammar(kind=77, text="a"))  # type: ignore[arg-type]
    work = worker_pb2.Work(request_id=1, prompt=[5], sampling=sampling)
    worker.handler.handle(session, worker_pb2.Command(submit=worker_pb2.Submit(work=work)), 0.0)
    [(code, message)] = failures(worker, session)
    assert (code, message) == (worker_pb2.FAILURE_CODE_INVALID, "this worker knows no kind of grammar 77")
    assert 1 not in worker.jobs


def test_a_request_begins_when_its_grammar_is_compiled(worker: Handled, compiler: SlowCompiler) -> None:
    begin(worker)
    compiler.outcome = Mock()
    compiler.go.set()
    assert worker.inbox.run(20.0)
    assert worker.engine.has_work
    assert worker.jobs.get(1).request.matcher is compiler.outcome


def test_a_grammar_that_does_not_compile_is_an_invalid_request(
    worker: Handled, compiler: SlowCompiler
) -> None:
    session = begin(worker)
    compiler.outcome = GrammarError("too large")
    compiler.go.set()
    assert worker.inbox.run(20.0)
    assert failures(worker, session) == [(worker_pb2.FAILURE_CODE_INVALID, "too large")]
    assert worker.handler.idle


@pytest.mark.parametrize("way", ["abort", "deadline", "session"])
def test_a_request_that_ends_before_its_grammar_is_compiled_never_begins(
    worker: Handled, compiler: SlowCompiler, way: str
) -> None:
    session = begin(worker, timeout_s=5.0)
    if way == "abort":
        worker.handler.abort(1)
    elif way == "deadline":
        worker.handler.tick(6.0)
        [(code, _)] = failures(worker, session)
        assert code == worker_pb2.FAILURE_CODE_DEADLINE
    else:
        worker.handler.close(session)
    compiler.outcome = Mock()
    compiler.go.set()
    assert worker.inbox.run(20.0)
    assert not worker.engine.has_work
    assert worker.handler.idle
