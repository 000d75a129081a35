"""Settings of Python's cyclic garbage collector that avoid long pauses."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

_MIDDLE_GENERATION: Final = 2
"""Collections of generation 0 before one of generation 1, which visits all that they left."""
_OLD_GENERATION: Final = 1_000_000
"""Collections of generation 1 before one of generation 2: in practice, never."""


def freeze_gc() -> None:
    """Exclude all existing objects, mostly modules, from later collections.

    A full collection of a router visits some 90,000 objects without this, which stops every stream for 25 ms
    on a slow core; with it, only what its requests have left.
    """
    gc.collect()
    gc.freeze()


def tune_gc() -> None:
    """`freeze_gc`, keep collections of the middle generation small, and disable those of the oldest.

    A full collection visits all containers of the process, among them every prompt and every list of pages:
    with a thousand requests it stopped the engine for 100 to 600 ms, several times a minute. A collection of
    the middle generation visits what three of the young one left, instead of eleven: 0.2 ms instead of 0.6.
    What Baton drops is freed by reference counts; idle processes may still call `gc.collect`.
    """
    freeze_gc()
    gc.set_threshold(gc.get_threshold()[0], _MIDDLE_GENERATION, _OLD_GENERATION)


class CollectorClock:
    """Seconds that the garbage collector has taken in this process, on any thread, from `start` to `stop`.

    Collections hold the interpreter lock: all threads that run Python wait for them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = 0.0
        self._clock = clock
        self._began = 0.0

    def start(self) -> None:
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        """Collections do not nest, and no two threads collect at a time."""
        if phase == "start":
            self._began = self._clock()
        else:
            self.seconds += self._clock() - self._began
