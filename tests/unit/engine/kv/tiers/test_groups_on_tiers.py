"""A prefix comes up from tiers only where every group can serve it: windows, and recurrent states."""

from __future__ import annotations

import pytest

from common.block_key import part_of
from common.kv_groups import group_layers
from engine.core.request import Request
from engine.kv.tiers.stats import Fault, Tier
from tests.unit.engine.engines import make_request
from tests.unit.engine.kv.tiers.tiered import Tiered

WINDOW = group_layers([None, 9], 64)
"""A token behind a page boundary sees two pages of four tokens before it."""
FIRST = list(range(1, 29))
OTHER = list(range(40, 68))
FULL, SLIDING, STATE = 0, 1, 1


def windowed(**limits: int) -> Tiered:
    return Tiered(groups=WINDOW, num_pages=16, **limits)


def stateful(**limits: int) -> Tiered:
    return Tiered(num_state_slots=3, num_pages=10, **limits)


def parts(tiered: Tiered) -> list[int]:
    return [part_of(key) for key in tiered.tiers.host]


def asked_again(tiered: Tiered) -> Request:
    """A prompt that begins as `FIRST`, of which the pool has nothing any more."""
    evict(tiered)
    again = make_request(9, [*FIRST, 90], 2)
    tiered.answer(again)
    return again


def evict(tiered: Tiered) -> None:
    """All that no request protects."""
    tiered.engine.kv.clear(None)


@pytest.mark.parametrize("model", [windowed, stateful])
def test_an_evicted_prefix_comes_up_with_its_window_or_state(model: type[Tiered]) -> None:
    tiered = model()
    tiered.answer(make_request(1, FIRST, 2))
    again = asked_again(tiered)
    assert tiered.promoted(again)[Tier.HOST] > 0
    assert again.num_cached == (len(FIRST) if model is windowed else len(FIRST) - 4)


def test_only_the_last_window_of_a_prefix_goes_down() -> None:
    tiered = windowed()
    tiered.answer(make_request(1, FIRST, 2))
    assert parts(tiered).count(FULL) == 7
    assert parts(tiered).count(SLIDING) == 2


@pytest.mark.parametrize(("model", "part"), [(windowed, SLIDING), (stateful, STATE)])
def test_a_prefix_whose_window_or_state_is_lost_is_a_miss(model: type[Tiered], part: int) -> None:
    tiered = model()
    tiered.answer(make_request(1, FIRST, 2))
    tiered.tiers.revoke([key for key in tiered.tiers.host if part_of(key) == part])
    assert FULL in parts(tiered)
    again = asked_again(tiered)
    assert again.num_cached == 0
    assert not tiered.promoted(again)


@pytest.mark.parametrize(("model", "part"), [(windowed, SLIDING), (stateful, STATE)])
def test_a_flipped_bit_of_a_window_or_state_is_computed_again(model: type[Tiered], part: int) -> None:
    tiered = model()
    tiered.answer(make_request(1, FIRST, 2))
    for key in tiered.tiers.host:
        copy = tiered.tiers.host.get(key)
        if part_of(key) == part and copy is not None:
            tiered.copier.slots[copy.slot][-1] ^= 1
    again = asked_again(tiered)  # with the reference's tokens
    assert tiered.tiers.counts.faults[Fault.DIGEST] > 0
    assert again.num_cached == 0


@pytest.mark.parametrize("model", [windowed, stateful])
def test_windows_and_states_come_up_from_disk(model: type[Tiered]) -> None:
    tiered = model(host_slots=16, disk_files=100)
    tiered.answer(make_request(1, FIRST, 2))
    tiered.answer(make_request(2, OTHER, 2))
    again = asked_again(tiered)
    assert tiered.promoted(again)[Tier.DISK] > 0
    assert again.num_cached == (len(FIRST) if model is windowed else len(FIRST) - 4)


def test_a_window_that_was_evicted_alone_comes_up_to_its_cached_pages() -> None:
    """Only the missing pages of the prefix are copied."""
    tiered = Tiered(groups=WINDOW, num_pages=40)
    tiered.answer(make_request(1, FIRST, 2))
    kv = tiered.engine.kv
    node = kv.cache.match(FIRST, kv.cache.root()).node
    kv.cache.lock(node)
    evict(tiered)
    kv.cache.unlock(node)
    assert kv.cached_tokens(make_request(2, [*FIRST, 90])) == 0
    again = make_request(9, [*FIRST, 90], 2)
    tiered.answer(again)
    assert again.num_cached == len(FIRST)
    assert tiered.tiers.counts.promoted[Tier.HOST] == 2
