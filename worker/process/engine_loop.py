"""The engine thread, which owns all state of requests.

Each iteration runs the functions posted to its inbox, computes a step, and sends each session one batch of
events. Without work it sleeps until a function is posted or a deadline expires.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from engine.device.allocations import num_allocations
from engine.device.current import enter_device
from engine.executor.base import StepInFlight
from engine.loop.engine import Engine
from engine.loop.pauses.causes import Cause
from worker.pauses.pause_watch import PauseWatch
from worker.process.batch_log import BatchLog
from worker.request_handler import RequestHandler
from worker.session.inbox import Inbox
from worker.session.metrics import WorkerMetrics
from worker.session.outbox import Outbox

log = logging.getLogger(__name__)

_LOAD_INTERVAL_S: Final = 0.1
"""Interval between load reports of a busy worker. Computing the load costs O(requests)."""

Clock: TypeAlias = Callable[[], float]


class EngineDied(Exception):
    """The engine failed; all requests of this worker are lost."""


class EngineLoop:
    """Owns the engine, the request handler and the outbox from `start` until `stop`."""

    def __init__(
        self,
        engine: Engine,
        handler: RequestHandler,
        inbox: Inbox,
        outbox: Outbox,
        metrics: WorkerMetrics,
        *,
        clock: Clock,
        on_death: Callable[[EngineDied], None],
        batch_log: BatchLog | None = None,
    ) -> None:
        """`on_death` is called once, on the engine thread, after all sessions were failed."""
        self._engine = engine
        self._handler = handler
        self._inbox = inbox
        self._outbox = outbox
        self._metrics = metrics
        self._clock = clock
        self._on_death = on_death
        self._pauses = PauseWatch(engine.laps, partial(num_allocations, engine.config.device))
        self._lap = engine.laps.lap
        self._batch_log = batch_log or BatchLog(0, engine.config.page_size)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._stopping = False
        self._steps = 0
        self._load_due = 0.0
        self._turn_began = math.inf
        """Start of the current iteration; math.inf while asleep."""
        self._settled = False
        """Whether the last iteration had no work; the next has none before a message or a deadline."""
        self._waker = StepWaker(inbox)
        self._blocked_since = math.inf
        """Since when the engine has only been waiting for the step in flight; math.inf: it is not."""
        self._pages_checked = True
        """Whether the page invariant was checked since the last work."""

    def start(self) -> None:
        self._pauses.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current step, and wait for it. Remaining requests are dropped."""
        self._stopping = True
        self._inbox.post(lambda: None)
        self._thread.join()
        self._pauses.stop()
        self._waker.stop()

    def busy_s(self) -> float:
        """Duration of the current iteration so far; -inf while asleep. From any thread."""
        return self._clock() - self._turn_began

    def _run(self) -> None:
        try:
            enter_device(self._engine.config.device)
            self._pauses.begin()
            while not self._stopping:
                wait_s = self._wait_s()
                self._turn_began = self._clock() if wait_s == 0.0 else self._blocked_since
                if self._inbox.run(wait_s, self._waited):
                    self._settled = self._pages_checked = False
                self._lap(Cause.COMMANDS)
                self._turn()
        except BaseException as error:  # including panics of native libraries and SystemExit
            log.exception("the engine failed")
            death = EngineDied(f"the engine failed: {type(error).__name__}: {error}")
            self._turn_began = math.inf
            self._outbox.fail(str(death))
            self._on_death(death)
            self._inbox.refuse(death, until=lambda: self._stopping)

    def _wait_s(self) -> float | None:
        """Seconds to wait for a message; None: no limit."""
        if not self._settled:
            return max(0.0, self._engine.plan_at() - self._clock())
        wakeup = self._handler.next_wakeup()
        return None if wakeup == math.inf else max(0.0, wakeup - self._clock())

    def _waited(self) -> None:
        """For a message: with a step in flight, that is to say for the device."""
        if self._engine.step_in_flight is not None:
            self._engine.laps.waited()
        elif self._settled:
            self._pauses.rest()

    def _turn(self) -> None:
        lap = self._lap
        began = self._turn_began = self._clock()
        self._handler.tick(began)
        lap(Cause.COMMANDS)
        self._settled = True
        if self._engine.has_work:
            self._pauses.wake()
            self._outbox.flush()  # tickets and arrivals must not wait for the step
            lap(Cause.SEND)
            if began >= self._engine.plan_at():
                self._step(began)
            else:
                self._settled = False  # a message arrived; others may, before the step is planned
                self._engine.poll_tiers()  # if it is a request, KV that it has on a tier comes up meanwhile
        else:
            self._pauses.rest()
            self._engine.poll_tiers()
            self._batch_log.rest()
            if self._handler.idle and not self._pages_checked:
                # When idle, every page must be free or cached; abort rather than risk corrupt KV.
                self._engine.check_pages()
                self._pages_checked = True
        if self._settled or began >= self._load_due:
            self._load_due = began + _LOAD_INTERVAL_S
            self._outbox.report_load(self._handler.load())
        # Before the end of an answer is reported: the next turn of its chat is routed by cached prefix.
        self._outbox.report_cache(self._handler.cache_changes())
        self._outbox.flush(self._steps)
        lap(Cause.SEND)
        self._engine.proceed()

    def _step(self, began: float) -> None:
        output = self._engine.step(block=False)
        if output.blocked:
            step = self._engine.step_in_flight
            assert step is not None
            self._waker.watch(step)
            self._blocked_since = min(self._blocked_since, began)
            return
        self._blocked_since = math.inf
        self._steps += 1
        self._settled = not (output.num_tokens or output.completed)
        self._pages_checked = False
        self._handler.on_step(output)
        self._lap(Cause.SEND)
        if output.completed and (slow := self._pauses.on_step(output)) is not None:
            self._metrics.slow(slow)
            self._outbox.slow(slow)
        ended = self._clock()
        self._metrics.on_step(output, ended - began)
        self._batch_log.on_step(output, self._engine.occupancy(), began, ended)


class StepWaker:
    """A thread that waits for device events, since the engine thread can wait only for its inbox.

    The first `watch` starts it. `watch` and `stop` belong to one thread.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._steps: queue.SimpleQueue[StepInFlight | None] = queue.SimpleQueue()
        self._watched: StepInFlight | None = None
        self._thread = threading.Thread(target=self._run, name="step-waker", daemon=True)

    def watch(self, step: StepInFlight) -> None:
        """Post an empty message to the inbox when `step`, which must be fully enqueued, has completed."""
        if step is self._watched:
            return
        if self._watched is None:
            self._thread.start()
        self._watched = step
        self._steps.put(step)

    def stop(self) -> None:
        """End the thread, after the step for which it waits."""
        if self._watched is not None:
            self._steps.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            try:
                step.wait()
            finally:  # an error of the step is raised to the engine
                self._inbox.post(_nothing)


def _nothing() -> None:
    pass
