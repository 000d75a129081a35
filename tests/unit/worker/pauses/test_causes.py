"""A pause is put into every part of a step in turn, and gets that part's name. Its clock is the test's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from common.garbage_collection import CollectorClock
from engine.core.events import TokenOut
from engine.core.plan import StepPlan
from engine.executor.base import StepResult
from engine.kernels.compilations import COMPILATIONS
from engine.loop.engine import Engine
from engine.loop.pauses.causes import Cause
from engine.loop.pauses.slow_steps import SlowStep
from kv_transfer import EndpointEvent
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.engine_config import engine_config
from tests.unit.engine.engines import make_request
from tests.unit.engine.fake_runner import FakeRunner, FakeStep, Work
from tests.unit.engine.loop.pauses.times import Times
from tests.unit.worker.handlers import Handled, handled
from worker.process.engine_loop import EngineLoop
from worker.session.inbox import Inbox
from worker.session.jobs import Job
from worker.session.outbox import Outbox

_PAUSE_S = 50.0
"""So long that nothing which really happens to the test is longer."""


class SlowRunner(FakeRunner):
    """Calls a function of the test in each of its parts."""

    batch = launching = device = staticmethod(lambda: None)

    def prepare(self, plan: StepPlan) -> list[Work]:
        self.batch()
        return super().prepare(plan)

    def launch(self, step: list[Work]) -> FakeStep:
        self.launching()
        launched = super().launch(step)
        result = launched.result

        def waited() -> StepResult:
            self.device()
            return result()

        launched.result = waited  # type: ignore[method-assign]
        return launched


class Loop:
    """An engine loop whose turns the test runs, with a stream that decodes."""

    def __init__(self, device: str = "cuda", overlap: bool = True) -> None:
        config = engine_config(device=device, overlap=overlap, page_size=4, num_pages=64, chunk_budget=16)
        self.times = Times()
        self.runner = SlowRunner(config.page_size, config.num_pages)
        runner: Any = self.runner
        self.engine = Engine(config, runner=runner, clock=lambda: self.times.now, laps=self.times.laps())
        self.parts: Handled = handled(self.engine)
        self.metrics, self.inbox = Mock(), Inbox()
        self.loop = EngineLoop(
            self.engine,
            self.parts.handler,
            self.inbox,
            self.parts.outbox,
            self.metrics,
            clock=lambda: self.times.now,
            on_death=Mock(),
        )
        self.loop._pauses._collector = Mock(spec=CollectorClock, seconds=0.0)
        self.allocations = 0
        self.loop._pauses._allocations = lambda: self.allocations
        self.loop._pauses.begin()
        self.engine.submit(make_request(1, [5, 6, 7], max_tokens=200, ignore_eos=True))
        self.loop._settled = False
        self.turns(60)

    def turns(self, number: int) -> None:
        for _ in range(number):
            self.inbox.run(0.0, self.loop._waited)
            self.loop._lap(Cause.COMMANDS)
            self.loop._turn()
            self.times.passes(0.001)

    def pause(self) -> None:
        self.times.passes(_PAUSE_S)

    def once(self) -> Callable[[], None]:
        left = iter([self.pause])
        return lambda: next(left, _nothing)()

    @property
    def slow(self) -> list[SlowStep]:
        return [call.args[0] for call in self.metrics.slow.call_args_list]

    @property
    def causes(self) -> list[Cause]:
        return [slow.cause for slow in self.slow]


def _nothing() -> None:
    pass


@pytest.fixture
def loop() -> Loop:
    loop = Loop()
    assert not loop.slow
    return loop


@pytest.mark.parametrize(
    ("part", "cause"), [("batch", Cause.BATCH), ("launching", Cause.LAUNCH), ("device", Cause.DEVICE)]
)
def test_parts_of_the_runner(loop: Loop, part: str, cause: Cause) -> None:
    setattr(loop.runner, part, loop.once())
    loop.turns(5)
    assert loop.causes == [cause]
    assert loop.slow[0].parts[cause] == pytest.approx(_PAUSE_S, rel=0.01)


def test_what_is_launched_on_a_cpu_is_computed_there() -> None:
    loop = Loop(device="cpu", overlap=False)
    loop.runner.launching = loop.once()  # type: ignore[method-assign]
    loop.turns(5)
    assert loop.causes == [Cause.DEVICE]


def test_a_plan_that_takes_long(loop: Loop) -> None:
    plan, late = loop.engine.scheduler.plan, loop.once()

    def slow_plan(now: float) -> StepPlan:
        late()
        return plan(now)

    loop.engine.scheduler.plan = slow_plan  # type: ignore[method-assign, assignment]
    loop.turns(5)
    assert loop.causes == [Cause.PLAN]


def test_a_long_command_between_two_steps(loop: Loop) -> None:
    loop.inbox.post(loop.pause)
    loop.turns(5)
    assert loop.causes == [Cause.COMMANDS]


def test_a_scrape_that_takes_long(loop: Loop) -> None:
    answer = loop.inbox.ask(loop.pause)
    loop.turns(5)
    assert answer.done()
    assert loop.causes == [Cause.COMMANDS]


def test_an_outbox_that_takes_long(loop: Loop) -> None:
    flush, late = loop.parts.outbox.flush, loop.once()

    def slow_flush(step: int | None = None) -> None:
        late()
        flush(step)

    loop.parts.outbox.flush = slow_flush
    loop.turns(5)
    assert loop.causes == [Cause.SEND]


def test_an_event_of_a_handoff_that_takes_long(loop: Loop) -> None:
    handler = loop.parts.handler
    assert handler._handoffs is not None
    handoffs: Any = Mock(wraps=handler._handoffs)
    handoffs.on_transfer = lambda event: loop.pause()
    handoffs.next_wakeup.return_value = math.inf
    handler._handoffs = handoffs
    loop.inbox.post(handler.on_transfer, Mock(spec=EndpointEvent))
    loop.turns(5)
    assert loop.causes == [Cause.HANDOFF]


def test_copies_of_tiers_that_take_long(loop: Loop) -> None:
    tend, late = loop.engine._tend_tiers, loop.once()

    def slow_tend() -> None:
        late()
        tend()

    loop.engine._tend_tiers = slow_tend  # type: ignore[method-assign]
    loop.turns(5)
    assert loop.causes == [Cause.COPIES]


def test_a_collection_in_the_middle_of_a_launch(loop: Loop) -> None:
    late = loop.once()

    def collecting() -> None:
        before = loop.times.now
        late()
        loop.loop._pauses._collector.seconds += loop.times.now - before

    loop.runner.launching = collecting  # type: ignore[method-assign]
    loop.turns(5)
    assert loop.causes == [Cause.GC]


def test_a_kernel_that_is_compiled_at_its_first_use(loop: Loop) -> None:
    late = loop.once()

    def compiling() -> None:
        before = loop.times.now
        late()
        if loop.times.now > before:
            COMPILATIONS.note("a kernel", loop.times.now - before)

    loop.runner.launching = compiling  # type: ignore[method-assign]
    loop.turns(5)
    assert loop.causes == [Cause.COMPILE]


@pytest.mark.parametrize("part", ["batch", "launching", "device"])
def test_memory_that_the_driver_allocates_during_a_step(loop: Loop, part: str) -> None:
    late = loop.once()

    def allocating() -> None:
        before = loop.times.now
        late()
        loop.allocations += loop.times.now > before

    setattr(loop.runner, part, allocating)
    loop.turns(5)
    assert loop.causes == [Cause.ALLOCATION]
    assert loop.slow[0].parts[Cause.ALLOCATION] == pytest.approx(_PAUSE_S, rel=0.01)


def test_an_allocation_is_not_why_a_plan_takes_long(loop: Loop) -> None:
    loop.inbox.post(loop.pause)
    loop.allocations += 1
    loop.turns(5)
    assert loop.causes == [Cause.COMMANDS]


def test_time_without_work_is_no_pause() -> None:
    loop = Loop()
    loop.engine.abort(1)
    loop.turns(5)
    loop.pause()
    loop.engine.submit(make_request(2, [5, 6, 7], max_tokens=20, ignore_eos=True))
    loop.loop._waited()
    loop.turns(10)
    assert not loop.slow


def test_a_slow_step_is_reported_with_its_tokens() -> None:
    outbox, here, there = Outbox(), Mock(), Mock()
    slow = SlowStep(Cause.GC, 0.25, 0.02, {Cause.GC: 0.125, Cause.DEVICE: 0.125})
    for session in (here, there):
        outbox.open(session)
    request = make_request(1, [5, 6])
    job = Job(request, here, arrival=0.0, deadline=math.inf, sampling=sampling_pb2.SamplingParams())
    outbox.flush()
    outbox.token(job, TokenOut(request, 7, 0, None, None), None)
    outbox.report_load(worker_pb2.Load(running=1))
    outbox.slow(slow)
    outbox.flush(1)
    batch, other = here.send.call_args.args[0], there.send.call_args.args[0]
    assert batch.slow_step == worker_pb2.SlowStep(
        cause="gc", seconds=0.25, expected_s=0.02, parts={"gc": 0.125, "device": 0.125}
    )
    assert batch.sent_s > 0
    assert not other.HasField("slow_step"), "it waits for no token"
