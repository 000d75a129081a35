"""Wakes the engine thread when the device has completed a step."""

from __future__ import annotations

import queue
import threading

from engine.executor.base import StepInFlight
from worker.session.inbox import Inbox


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
