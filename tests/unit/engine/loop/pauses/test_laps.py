"""All of the thread's time is in one part, and what kept it off its core is taken out of the parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.loop.pauses.attribution import OffCPU, attributed
from engine.loop.pauses.causes import Cause
from engine.loop.pauses.laps import Lapped, Seconds
from tests.unit.engine.loop.pauses.times import Times


def lapped(waited_s: float = 0.0, **parts: float) -> Lapped:
    """`waited_s`: for the device."""
    times = Times()
    laps = times.laps()
    for name, seconds in parts.items():
        times.passes(seconds)
        laps.lap(Cause(name))
    times.passes(waited_s)
    laps.waited()
    return laps.take()


def test_parts_add_up_to_the_time_between_two_takes() -> None:
    times = Times()
    laps = times.laps()
    for part, seconds in ((Cause.PLAN, 1.0), (Cause.DEVICE, 4.0), (Cause.PLAN, 0.5)):
        times.passes(seconds)
        laps.lap(part)
    times.passes(8.0)  # not lapped yet: of the next step
    taken = laps.take()
    assert taken.parts == {Cause.PLAN: 1.5, Cause.DEVICE: 4.0}
    assert taken.seconds == 5.5
    laps.lap(Cause.SEND)
    assert laps.take().parts == {Cause.SEND: 8.0}


def test_an_interruption_is_not_part_of_what_it_interrupts() -> None:
    times, collected = Times(), [3.0]
    laps = times.laps()
    laps.watch([(Cause.GC, lambda: collected[0])])
    times.passes(2.0)
    collected[0] += 0.5
    laps.lap(Cause.PLAN)
    times.passes(1.0)
    laps.lap(Cause.SEND)
    assert laps.take().parts == {Cause.PLAN: 1.5, Cause.GC: 0.5, Cause.SEND: 1.0}


def test_no_time_before_a_restart_counts() -> None:
    times = Times()
    laps = times.laps()
    times.passes(5.0)
    laps.lap(Cause.PLAN)
    times.passes(5.0)
    laps.restart()
    times.passes(1.0)
    laps.lap(Cause.SEND)
    assert laps.take().parts == {Cause.SEND: 1.0}


def test_a_thread_that_waits_for_a_core_has_that_cause() -> None:
    taken = lapped(plan=1.0, launch=0.5)
    parts = attributed(taken, OffCPU(cpu_s=1.1, queued_s=0.4))
    assert parts[Cause.CPU] == pytest.approx(0.4)
    assert parts[Cause.PLAN] == pytest.approx(0.6), "the longest part"


def test_a_stopped_process_is_not_a_slow_device() -> None:
    parts = attributed(lapped(waited_s=8.0, plan=0.25), OffCPU(cpu_s=0.25, stopped_s=6.0))
    assert parts == {Cause.PLAN: 0.25, Cause.DEVICE: 2.0, Cause.STOPPED: 6.0}


def test_time_off_the_core_beside_running_threads_is_the_interpreter_lock() -> None:
    taken = lapped(plan=1.0, launch=0.5, waited_s=3.0)
    parts = attributed(taken, OffCPU(cpu_s=1.25, others_cpu_s=2.0))
    assert parts == {Cause.PLAN: 0.75, Cause.LAUNCH: 0.5, Cause.LOCK: 0.25, Cause.DEVICE: 3.0}
    assert Cause.LOCK not in attributed(taken, OffCPU(cpu_s=1.25)), "no other thread ran"
    assert Cause.LOCK not in attributed(taken, OffCPU(cpu_s=1.5, others_cpu_s=2.0)), "it was on its core"


def test_a_lock_that_another_thread_held_is_not_a_slow_device() -> None:
    parts = attributed(lapped(waited_s=8.0), OffCPU(cpu_s=0.0, held_s=6.0))
    assert parts == {Cause.DEVICE: 2.0, Cause.LOCK: 6.0}
    own = attributed(lapped(waited_s=8.0, plan=6.0), OffCPU(cpu_s=6.0, held_s=6.0))
    assert Cause.LOCK not in own, "the engine thread held it itself"


def test_a_collection_is_not_moved() -> None:
    parts = attributed(lapped(gc=4.0, plan=0.5), OffCPU(cpu_s=0.5, queued_s=4.0))
    assert parts == {Cause.GC: 4.0, Cause.PLAN: 0.0, Cause.CPU: 0.5, Cause.DEVICE: 0.0}


@given(
    st.dictionaries(st.sampled_from(list(Cause)), st.floats(0.0, 10.0), min_size=1),
    st.floats(0.0, 10.0),
    st.builds(OffCPU, *[st.floats(0.0, 20.0)] * 5),
)
def test_attribution_keeps_the_sum_and_takes_no_more_than_there_is(
    parts: Seconds, waited_s: float, off: OffCPU
) -> None:
    taken = lapped(waited_s, **{cause.value: seconds for cause, seconds in parts.items()})
    found = attributed(taken, off)
    assert sum(found.values()) == pytest.approx(taken.seconds)
    assert min(found.values()) >= -1e-9
    gained = sum(
        found.get(cause, 0.0) - parts.get(cause, 0.0) for cause in (Cause.CPU, Cause.STOPPED, Cause.LOCK)
    )
    assert gained <= max(taken.seconds - off.cpu_s, waited_s) + 1e-9, "it was on its core for the rest"
