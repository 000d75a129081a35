"""Ends a worker whose engine hangs, so that Ray restarts it.

Heartbeats show a stopped or dead process, but not an engine that waits forever for a device or a lock, since
another thread sends them. The watchdog therefore measures how long the current step takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from worker.process.engine_loop import EngineDied, EngineLoop


class Watchdog:
    """Polls the engine loop from its own thread."""

    def __init__(
        self, loop: EngineLoop, step_timeout_s: float, on_death: Callable[[EngineDied], None]
    ) -> None:
        """`on_death` is called once, on the watchdog's thread, when a step exceeds `step_timeout_s`."""
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
                self._on_death(EngineDied(f"the engine hangs: its current step has taken {busy_s:.0f} s"))
                return
