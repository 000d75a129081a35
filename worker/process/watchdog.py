"""Ends a worker whose engine hangs, so that it is started anew.

A process that is stopped or dead falls silent, which its router notices. An engine that waits for ever, on a
device or on a lock, leaves the process talking: only how long its current step takes gives it away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from worker.process.engine_loop import EngineDied, EngineLoop

__all__ = ["Watchdog"]


class Watchdog:
    """Looks at the engine's loop now and then, from a thread of its own."""

    def __init__(
        self, loop: EngineLoop, step_timeout_s: float, on_death: Callable[[EngineDied], None]
    ) -> None:
        """`on_death` is called once, from the watchdog's thread, when a step takes longer than that."""
        self._loop = loop
        self._step_timeout_s = step_timeout_s
        self._on_death = on_death
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._step_timeout_s / 10):
            busy_s = self._loop.busy_s()
            if busy_s > self._step_timeout_s:
                self._on_death(EngineDied(f"the engine hangs: it has been at one step for {busy_s:.0f} s"))
                return
