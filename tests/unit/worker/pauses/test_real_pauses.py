"""Pauses that only a real thread, a real process or a real collector has."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.loop.pauses.causes import Cause
from engine.loop.pauses.slow_steps import SlowStep
from tests.unit.worker.pauses.real_loop import running_loop
from worker.pauses.pulse import Late, Pulse

_ROOT = Path(__file__).parents[4]
_STOP_S = 0.4
"""Longer than what a busy machine does to a thread."""
_ATTEMPTS = 5
"""The machine may stop the thread for longer, once."""


def cause_of_longest(found: list[SlowStep]) -> Cause:
    return max(found, key=lambda slow: slow.seconds).cause


def hold_the_interpreter(seconds: float) -> float:
    """Calls into C that never look whether another thread wants to run. Returns the share of a core that the
    machine had for them."""
    began, cpu, size = time.monotonic(), time.thread_time(), 1 << 20
    while time.monotonic() - began < seconds:
        size *= 2
        sum(range(size))
    return (time.thread_time() - cpu) / (time.monotonic() - began)


@pytest.mark.alone
def test_a_full_collection_of_a_large_heap() -> None:
    heap, causes = [[number] for number in range(3_000_000)], list[Cause]()
    while Cause.GC not in causes and len(causes) < _ATTEMPTS:
        found: list[SlowStep] = []
        with running_loop(found.append) as inbox:
            gc.unfreeze()
            inbox.ask(gc.collect).result()
            time.sleep(0.1)
        causes.append(cause_of_longest(found))
    assert heap
    assert causes[-1] is Cause.GC, causes


@pytest.mark.alone
def test_a_thread_that_holds_the_interpreter_lock() -> None:
    causes: list[Cause] = []
    for _ in range(20):
        found: list[SlowStep] = []
        with running_loop(found.append), ThreadPoolExecutor(1) as thread:
            share = thread.submit(hold_the_interpreter, _STOP_S).result()
            time.sleep(0.1)
        if share > 0.6:
            causes.append(cause_of_longest(found))
            if causes[-1] is Cause.LOCK:
                return
            assert len(causes) < _ATTEMPTS, causes
    pytest.skip("the machine has no core for the thread that holds the lock")


@pytest.mark.alone
def test_a_process_that_is_stopped() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.worker.pauses.real_loop"],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert next(line for line in process.stdout if not line.startswith("{")) == "ready\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(_STOP_S)
    process.send_signal(signal.SIGCONT)
    reported = (json.loads(line) for line in process.stdout)
    slowest = next(slow for slow in reported if slow["seconds"] > _STOP_S / 2)
    process.communicate("")
    assert slowest["cause"] == Cause.STOPPED.value


def test_the_pulse_rests_while_there_is_no_work() -> None:
    clock = [10.0]
    pulse = Pulse(lambda: clock[0], lambda: 0.0)
    pulse.beat(True)
    clock[0] += 5.0
    assert pulse.late_since(9.0) == Late(stopped_s=5.0 - 0.02)
    assert pulse.late_since(13.0) == Late(stopped_s=2.0), "no longer than the time that is asked about"
    pulse.beat(False)
    assert pulse.late_since(9.0) == Late()


def test_a_late_pulse_of_a_busy_process_is_a_held_lock() -> None:
    clock, cpu = [10.0], [0.0]
    pulse = Pulse(lambda: clock[0], lambda: cpu[0])
    pulse.beat(True)
    clock[0] += 1.0
    cpu[0] += 0.9
    assert pulse.late_since(9.0) == Late(held_s=1.0 - 0.02)
