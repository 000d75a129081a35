"""Python's cyclic garbage collector, kept from stopping a process in the middle of its work."""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["freeze_gc", "tune_gc"]

_OLD_GENERATION: Final = 1_000_000
"""Collections of the middle generation before one of the oldest: in practice, never."""


def freeze_gc() -> None:
    """Leave what is there now out of every later collection: modules, above all, which are for ever.

    A full collection of a router visits some 90,000 objects without this, which stops every stream for 25 ms
    on a slow core; with it, only what its requests have left.
    """
    gc.collect()
    gc.freeze()


def tune_gc() -> None:
    """Likewise, and do not look through old objects again.

    A full collection visits all containers of the process, among them every prompt and every list of pages:
    with a thousand requests it stopped the engine for 100 to 600 ms, several times a minute. What Baton drops
    is freed by reference counts; whoever has idle time may still call `gc.collect`.
    """
    freeze_gc()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _OLD_GENERATION)
