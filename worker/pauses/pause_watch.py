"""Records the steps of a worker that were slow, with their causes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from common.garbage_collection import CollectorClock
from common.log_format import data
from engine.core.events import StepOutput
from engine.kernels.compilations import COMPILATIONS
from engine.loop.pauses.attribution import OffCPU, attributed
from engine.loop.pauses.causes import Cause
from engine.loop.pauses.laps import Laps
from engine.loop.pauses.slow_steps import SlowStep, SlowSteps
from worker.pauses.pulse import Pulse
from worker.pauses.run_queue import RunQueue

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.1


class _Used(NamedTuple):
    """Seconds of CPU time so far."""

    thread_s: float
    """CPU time of the engine thread."""
    process_s: float
    """CPU time of all threads."""

    @classmethod
    def now(cls) -> _Used:
        return cls(time.thread_time(), time.process_time())


class PauseWatch:
    """Belongs to the engine thread, from `begin` on."""

    def __init__(self, laps: Laps, allocations: Callable[[], int]) -> None:
        """`laps`: the engine's. `allocations`: see `num_allocations`; called a few times a second."""
        self._laps = laps
        self._allocations = allocations
        self._collector = CollectorClock()
        self._pulse = Pulse()
        laps.watch(
            (
                (Cause.GC, lambda: self._collector.seconds),
                (Cause.COMPILE, lambda: COMPILATIONS.seconds),
            )
        )
        self._steps = SlowSteps()
        self._queue = RunQueue()
        self._num_allocations = 0
        self._looked_at = -math.inf
        self._before = _Used(0.0, 0.0)
        """At the end of the last step."""

    def start(self) -> None:
        self._collector.start()
        self._pulse.start()

    def stop(self) -> None:
        self._pulse.stop()
        self._collector.stop()
        self._queue.close()

    def begin(self) -> None:
        """To be called first, on the engine thread."""
        self._queue.open()
        self.rest()
        self._look(-math.inf)

    def rest(self) -> None:
        """There is no work: the time that has passed delayed no request."""
        self._pulse.beat(False)
        self._laps.restart()
        self._before = _Used.now()

    def wake(self) -> None:
        """There is work after a `rest`."""
        self._pulse.beat(True)

    def on_step(self, output: StepOutput) -> SlowStep | None:
        """A step has completed; the step if it was slow. Two system calls if it was not."""
        lapped, before, used = self._laps.take(), self._before, _Used.now()
        self._before = used
        if not self._steps.is_slow(lapped.seconds, output.expected_s):
            self._steps.usual(lapped.parts)
            if lapped.began - self._looked_at > _LOOK_S:
                self._look(lapped.began)
            return None
        queued_s, allocated = self._look(lapped.began)
        late = self._pulse.late_since(lapped.began)
        cpu_s = used.thread_s - before.thread_s
        off = OffCPU(
            cpu_s,
            others_cpu_s=used.process_s - before.process_s - cpu_s,
            queued_s=queued_s,
            stopped_s=late.stopped_s,
            held_s=late.held_s,
        )
        slow = self._steps.named(attributed(lapped, off), output.expected_s, allocated=allocated)
        _log(slow)
        return slow

    def _look(self, now: float) -> tuple[float, bool]:
        """What is too slow to be read for every step, since the last call: seconds in the run queue, and
        whether the driver allocated memory."""
        before, self._num_allocations, self._looked_at = self._num_allocations, self._allocations(), now
        return self._queue.waited_s(), self._num_allocations != before


def _log(slow: SlowStep) -> None:
    parts = {part.value: round(seconds, 6) for part, seconds in slow.parts.items() if seconds > 0}
    expected = f" instead of {1000 * slow.expected_s:.0f}" if slow.expected_s else ""
    log.info(
        "Slow step: %.0f ms%s: %s",
        1000 * slow.seconds,
        expected,
        slow.cause.value,
        extra=data(event="slow_step", cause=slow.cause.value, seconds=slow.seconds, parts=parts),
    )
