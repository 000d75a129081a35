"""An engine that hangs is told from one that is slow, and from one that sleeps."""

from __future__ import annotations

import queue
import time
from typing import cast

import pytest

from worker.engine_loop import EngineDied, EngineLoop
from worker.watchdog import Watchdog


class Loop:
    """An engine loop whose current turn began at a given time."""

    def __init__(self, began: float) -> None:
        self._began = began

    def busy_s(self) -> float:
        return time.monotonic() - self._began


def deaths_of(loop: Loop, watch_s: float) -> list[EngineDied]:
    deaths: queue.SimpleQueue[EngineDied] = queue.SimpleQueue()
    watchdog = Watchdog(cast(EngineLoop, loop), 0.2, deaths.put)
    watchdog.start()
    time.sleep(watch_s)
    watchdog.stop()
    return [deaths.get() for _ in range(deaths.qsize())]


def test_a_step_that_takes_too_long_is_the_end_of_the_worker_once() -> None:
    (death,) = deaths_of(Loop(time.monotonic()), 0.5)
    assert "hangs" in str(death)


@pytest.mark.parametrize("began", [float("inf"), 0.1])
def test_a_sleeping_or_a_working_engine_is_left_alone(began: float) -> None:
    assert deaths_of(Loop(time.monotonic() + began), 0.25) == []
