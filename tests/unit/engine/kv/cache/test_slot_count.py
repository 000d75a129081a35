"""How memory is shared by pages and slots for states."""

from __future__ import annotations

import pytest

from engine.errors import EngineError
from engine.kv.cache.slot_count import share_out, wanted_slots


def test_every_request_has_a_slot_and_a_checkpoint_unless_a_number_is_given() -> None:
    assert wanted_slots(None, 8) == 16
    assert wanted_slots(3, 8) == 3


def test_pages_get_all_that_slots_do_not_take() -> None:
    assert share_out(1000, slot_blocks=10, wanted=9) == (900, 9)


def test_slots_take_half_of_the_memory_at_most() -> None:
    pages, slots = share_out(1000, slot_blocks=10, wanted=400)
    assert (pages, slots) == (500, 49)


def test_memory_without_room_for_a_request_is_refused_with_what_to_do() -> None:
    with pytest.raises(EngineError, match=r"as much memory as 10 pages.*--kv-memory-fraction"):
        share_out(39, slot_blocks=10, wanted=4)
