"""The engine's thread: what it plans, sends and enqueues while a step runs, and how it ends."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.core.request import PENDING
from engine.executor.base import StepResult
from engine.loop.engine import Engine
from engine.loop.hooks import NO_HOOKS
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.engine_config import engine_config
from tests.unit.engine.engines import KeepPages, make_request, run
from tests.unit.engine.fake_runner import FakeRunner, FakeStep, Work, reference
from tests.unit.worker.handlers import Stream
from worker.adapters.loading import AdapterLoading
from worker.grammar_loading import GrammarLoading
from worker.process.engine_loop import EngineDied, EngineLoop
from worker.request_handler import RequestHandler
from worker.session.answers import Answers
from worker.session.inbox import Inbox
from worker.session.metrics import WorkerMetrics
from worker.session.outbox import Outbox

PATIENCE_S = 30.0


class HeldStep(FakeStep):
    """Ends when the runner lets steps end. Its later parts wait for the tokens of the step before."""

    def __init__(
        self, runner: HeldRunner, enqueuing: Iterator[None], answer: StepResult, note: Callable[[], object]
    ) -> None:
        self._runner = runner
        self._note: Callable[[], object] = lambda: None
        super().__init__(enqueuing, answer, 0)
        self._note = note

    def proceed(self) -> bool:
        if not self.enqueued:
            self._note()
        return super().proceed()

    def proceed_early(self) -> bool:
        return False

    def done(self) -> bool:
        return self.enqueued and self._runner.ends.is_set()

    def wait(self) -> None:
        super().wait()
        self._runner.is_waited_for.set()
        assert self._runner.ends.wait(PATIENCE_S)

    def result(self) -> StepResult:
        assert self._runner.ends.wait(PATIENCE_S)
        return super().result()


class HeldRunner(FakeRunner):
    """A device whose steps end while `ends` is set."""

    ends: threading.Event
    is_waited_for: threading.Event
    """Set when a thread waits for a step, other than the engine's."""
    log: list[tuple[str, int]]
    """("launch" or "rest", number of the step), and ("tokens", 0) for each batch of a stream."""
    launching: Callable[[], object]
    """Called by `launch`."""

    def launch(self, step: list[Work]) -> FakeStep:
        self.launching()
        number, answer = len(self.steps), self._unanswered(step)
        self.log.append(("launch", number))
        rest = ("rest", number)
        self.enqueuing = HeldStep(self, self._compute(step, answer), answer, lambda: self.log.append(rest))
        return self.enqueuing


@dataclass
class Logged(Stream):
    """Notes in the runner's log when tokens are sent."""

    log: list[tuple[str, int]]
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    __hash__ = object.__hash__

    def send(self, batch: worker_pb2.EventBatch) -> None:
        super().send(batch)
        if any(output.HasField("tokens") for output in batch.outputs):
            self.log.append(("tokens", 0))

    def fail(self, reason: str) -> None:
        self.failures.append(reason)


class Worker:
    """An engine loop with its thread, whose device the test holds."""

    def __init__(self, hooks: Any = None) -> None:
        config = engine_config(page_size=4, num_pages=64, chunk_budget=8, overlap=True)
        self.runner = HeldRunner(config.page_size, config.num_pages)
        self.runner.ends, self.runner.is_waited_for = threading.Event(), threading.Event()
        self.runner.log, self.runner.launching = [], lambda: None
        runner: Any = self.runner
        self.engine = Engine(config, hooks=NO_HOOKS, runner=runner)
        self.runner.pool = self.engine.kv.pool
        self.inbox, outbox, metrics = Inbox(), Outbox(), WorkerMetrics()
        grammars = GrammarLoading(self.engine.grammars, self.inbox)
        adapters = AdapterLoading(self.engine.adapters, self.inbox, metrics)
        self.handler = RequestHandler(
            self.engine, Answers(outbox, metrics), time.monotonic, grammars, adapters
        )
        self.engine.hooks = self.handler if hooks is None else hooks
        self.deaths: queue.SimpleQueue[EngineDied] = queue.SimpleQueue()
        self.stream: Any = Logged(self.runner.log)
        self.handler.open(self.stream)
        self.loop = EngineLoop(
            self.engine,
            self.handler,
            self.inbox,
            outbox,
            metrics,
            clock=lambda: 1e12,  # always late enough to plan the next step
            on_death=self.deaths.put,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        self.loop.start()
        try:
            yield
        finally:
            self.runner.ends.set()
            self.loop.stop()

    def does(self, act: Callable[[], object]) -> None:
        """On the engine's thread, between two steps."""
        self.inbox.ask(act).result(PATIENCE_S)

    def does_during_the_next_step(self, act: Callable[[], object]) -> None:
        """As soon as the engine's thread has launched it."""
        posted = iter([lambda: self.inbox.post(act)])
        self.runner.launching = lambda: next(posted, lambda: None)()

    @property
    def is_asleep(self) -> bool:
        return self.loop.busy_s() == -math.inf


def until(condition: Callable[[], bool]) -> None:
    """Without a message to the engine's thread, which would wake it."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_request_that_waits_for_the_page_of_an_aborted_one_continues() -> None:
    """The step in flight completes without any output: what waited for it has to be looked at again."""
    worker = Worker(KeepPages())
    worker.runner.ends.set()
    prompt = list(range(20))
    aborted, waiting = make_request(1, prompt), make_request(2, prompt)
    worker.does_during_the_next_step(lambda: (worker.engine.abort(aborted.id), worker.engine.submit(waiting)))
    with worker.running():
        worker.does(lambda: worker.engine.submit(aborted))
        until(lambda: worker.is_asleep and len(waiting.output) == 8)
    assert waiting.output == reference(prompt, 8)
    assert not worker.engine.has_work
    worker.engine.release(aborted)
    worker.engine.release(waiting)
    worker.engine.check_pages()


def test_a_request_does_not_wait_for_the_same_page_after_another_prefix() -> None:
    worker = Worker(NO_HOOKS)
    worker.runner.ends.set()
    first, second = list(range(8)), list(range(8, 16))
    for id, prefix in enumerate([first, second]):
        run(worker.engine, make_request(id, [*prefix, 90], max_tokens=1))
    page = [1, 2, 3, 4, 5]
    aborted, other = make_request(2, first + page), make_request(3, second + page)
    worker.does_during_the_next_step(lambda: (worker.engine.abort(aborted.id), worker.engine.submit(other)))
    before = len(worker.runner.steps)
    with worker.running():
        worker.does(lambda: worker.engine.submit(aborted))
        until(lambda: worker.is_asleep and len(other.output) == 8)
    assert worker.runner.steps[before : before + 2] == [[(2, 8, 5)], [(3, 8, 5)]], "in the very next step"
    assert other.output == reference(second + page, 8)
    assert not worker.engine.has_work


def submit(request_id: int, max_tokens: int) -> worker_pb2.Command:
    sampling = sampling_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    work = worker_pb2.Work(request_id=request_id, prompt=[5, 6, request_id], sampling=sampling)
    return worker_pb2.Command(submit=worker_pb2.Submit(work=work))


def test_tokens_are_sent_before_the_rest_of_the_next_step_is_enqueued() -> None:
    worker = Worker()
    worker.runner.ends.set()
    with worker.running():

        def both() -> None:
            for request_id in (1, 2):
                worker.handler.handle(worker.stream, submit(request_id, max_tokens=20), 0.0)

        worker.does(both)
        until(lambda: worker.is_asleep and not worker.engine.has_work)
    log, steps = worker.runner.log, len(worker.runner.steps)
    assert steps >= 20
    for step in range(3, steps):
        meanwhile = log[log.index(("launch", step)) : log.index(("rest", step))]
        assert ("tokens", 0) in meanwhile, "of the step before it"


def test_a_request_that_comes_while_the_last_step_runs_is_planned_before_that_step_ends() -> None:
    """The device goes from one step to the next, and is not idle while the host hears of the first."""
    worker = Worker(NO_HOOKS)
    first, second = make_request(1, [5, 6, 7], max_tokens=1), make_request(2, [8, 9], max_tokens=1)
    with worker.running():
        worker.does(lambda: worker.engine.submit(first))
        until(worker.runner.is_waited_for.is_set)
        assert first.output == [PENDING]
        worker.does(lambda: worker.engine.submit(second))
        until(lambda: len(worker.runner.steps) == 2)
        assert worker.runner.steps[-1] == [(2, 0, 2)]
        assert first.output == [PENDING]
        worker.runner.ends.set()
        until(lambda: worker.is_asleep and [PENDING] not in (first.output, second.output))
    assert [first.output, second.output] == [reference([5, 6, 7], 1), reference([8, 9], 1)]
    worker.engine.check_pages()


def test_the_end_of_the_last_step_wakes_the_thread() -> None:
    worker = Worker(NO_HOOKS)
    request = make_request(1, [5, 6, 7], max_tokens=1)
    with worker.running():
        worker.does(lambda: worker.engine.submit(request))
        until(worker.runner.is_waited_for.is_set)
        worker.runner.ends.set()
        until(lambda: worker.is_asleep and request.output == reference([5, 6, 7], 1))


class Panic(BaseException):
    """As libraries in other languages raise: no Exception."""


@pytest.mark.parametrize("error", [Panic("at the disco"), SystemExit(1), RuntimeError("a bug")])
def test_every_kind_of_engine_failure_is_reported_at_once(error: BaseException) -> None:
    worker = Worker(NO_HOOKS)

    def fail() -> None:
        raise error

    worker.runner.launching = fail
    with worker.running():
        worker.inbox.post(worker.engine.submit, make_request(1, [5, 6, 7]))
        death = worker.deaths.get(timeout=PATIENCE_S)
        assert type(error).__name__ in str(death)
        assert worker.stream.failures == [str(death)]
        question = worker.inbox.ask(lambda: 42)
        with pytest.raises(EngineDied):
            question.result(PATIENCE_S)
    assert worker.deaths.empty()
