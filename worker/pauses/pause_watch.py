"""Records the steps of a worker that were slow, with their causes."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final, NamedTuple

from common.garbage_collection import CollectorClock
from common.log_format import data
from engine.core.events import StepOutput
from engine.kernels.compilations import COMPILATIONS
from engine.pauses.attribution import OffCPU, attributed
from engine.pauses.causes import Cause
from engine.pauses.laps import Laps
from engine.pauses.slow_steps import SlowStep, SlowSteps
from worker.pauses.pulse import Pulse

log = logging.getLogger(__name__)

_NS: Final = 1e-9


class _Used(NamedTuple):
    """Seconds so far."""

    thread_s: float
    """CPU time of the engine thread."""
    process_s: float
    """CPU time of all threads."""
    queued_s: float
    """That the engine thread was ready to run and waited for a core; 0 where the kernel does not say."""


class PauseWatch:
    """Belongs to the engine thread, from `begin` on."""

    def __init__(self, laps: Laps) -> None:
        """`laps`: the engine's."""
        self._laps = laps
        self._collector = CollectorClock()
        self._pulse = Pulse()
        laps.watch(
            (
                (Cause.GC, lambda: self._collector.seconds),
                (Cause.COMPILE, lambda: COMPILATIONS.seconds),
            )
        )
        self._steps = SlowSteps()
        self._schedule: int | None = None
        self._before = _Used(0.0, 0.0, 0.0)
        """At the end of the last step."""

    def start(self) -> None:
        self._collector.start()
        self._pulse.start()

    def stop(self) -> None:
        self._pulse.stop()
        self._collector.stop()
        if self._schedule is not None:
            os.close(self._schedule)

    def begin(self) -> None:
        """To be called first, on the engine thread."""
        self._schedule = _open_schedule()
        self.rest()

    def rest(self) -> None:
        """There is no work: what has passed delays nobody."""
        self._pulse.beat(False)
        self._laps.restart()
        self._before = self._read()

    def wake(self) -> None:
        """There is work after a `rest`."""
        self._pulse.beat(True)

    def on_step(self, output: StepOutput) -> SlowStep | None:
        """A step has completed; the step if it was slow. Three system calls if it was not."""
        lapped, before, used = self._laps.take(), self._before, self._read()
        self._before = used
        if not self._steps.is_slow(lapped.seconds, output.expected_s):
            self._steps.usual(lapped.parts)
            return None
        late = self._pulse.late_since(lapped.began)
        cpu_s = used.thread_s - before.thread_s
        off = OffCPU(
            cpu_s,
            others_cpu_s=used.process_s - before.process_s - cpu_s,
            queued_s=used.queued_s - before.queued_s,
            stopped_s=late.stopped_s,
            held_s=late.held_s,
        )
        slow = self._steps.named(attributed(lapped, off), output.expected_s)
        _log(slow)
        return slow

    def _read(self) -> _Used:
        queued_ns = b"0" if self._schedule is None else os.pread(self._schedule, 64, 0).split()[1]
        return _Used(time.thread_time(), time.process_time(), int(queued_ns) * _NS)


def _open_schedule() -> int | None:
    """The scheduler's statistics of the calling thread: run time, run-queue wait, time slices."""
    try:
        return os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _log(slow: SlowStep) -> None:
    parts = {part.value: round(seconds, 6) for part, seconds in slow.parts.items() if seconds > 0}
    log.info(
        "Slow step: %.0f ms instead of %.0f: %s",
        1000 * slow.seconds,
        1000 * slow.expected_s,
        slow.cause.value,
        extra=data(event="slow_step", cause=slow.cause.value, seconds=slow.seconds, parts=parts),
    )
