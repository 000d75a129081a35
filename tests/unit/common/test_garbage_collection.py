"""What a process leaves to its collector once it serves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from common.garbage_collection import freeze_gc, tune_gc


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threshold = gc.get_threshold()  # an engine in another test of this process may have changed it
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_frozen_objects_are_not_scanned_again_and_later_garbage_is_still_freed() -> None:
    gc.collect()  # what other tests have left is not there to stay
    there = len(gc.get_objects())
    freeze_gc()
    assert gc.get_freeze_count() > there / 2
    assert len(gc.get_objects()) < there / 10
    ring = weakref.ref(Ring())
    gc.collect()
    assert ring() is None


def test_an_engine_does_not_look_through_its_old_objects_either() -> None:
    tune_gc()
    assert gc.get_freeze_count() > 0
    young, middle, old = gc.get_threshold()
    assert young == 700
    assert middle < 10
    assert old > 10_000
