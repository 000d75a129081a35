"""An engine that hangs is told from one that is slow, and from one that sleeps."""

from __future__ import annotations

import queue
import threading
from typing import cast

import pytest

from worker.process.engine_loop import EngineDied, EngineLoop
from worker.process.watchdog import Watchdog

TIMEOUT_S = 0.05
LOOKS = 20
PATIENCE_S = 30.0


class Loop:
    """An engine loop that has been at its current step for so long, whenever it is asked."""

    def __init__(self, busy_s: float) -> None:
        self._busy_s = busy_s
        self._looks = 0
        self.looked_at_often = threading.Event()

    def busy_s(self) -> float:
        self._looks += 1
        if self._looks == LOOKS:
            self.looked_at_often.set()
        return self._busy_s


def test_a_step_that_takes_too_long_ends_the_worker_once() -> None:
    deaths: queue.SimpleQueue[EngineDied] = queue.SimpleQueue()
    watchdog = Watchdog(cast(EngineLoop, Loop(2 * TIMEOUT_S)), TIMEOUT_S, deaths.put)
    watchdog.start()
    assert "hangs" in str(deaths.get(timeout=PATIENCE_S))
    watchdog.stop()
    assert deaths.empty()


@pytest.mark.parametrize("busy_s", [0.0, 0.9 * TIMEOUT_S])
def test_an_idle_or_working_engine_is_not_ended(busy_s: float) -> None:
    deaths: queue.SimpleQueue[EngineDied] = queue.SimpleQueue()
    loop = Loop(busy_s)
    watchdog = Watchdog(cast(EngineLoop, loop), TIMEOUT_S, deaths.put)
    watchdog.start()
    assert loop.looked_at_often.wait(PATIENCE_S)
    watchdog.stop()
    assert deaths.empty()
