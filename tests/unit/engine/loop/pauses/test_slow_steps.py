"""Which steps are slow, and which cause they get: numbers in, a name out."""

from __future__ import annotations

import pytest

from engine.loop.pauses.causes import Cause
from engine.loop.pauses.laps import Seconds
from engine.loop.pauses.slow_steps import SlowStep, SlowSteps

USUAL: Seconds = {Cause.PLAN: 0.001, Cause.BATCH: 0.001, Cause.DEVICE: 0.016, Cause.SEND: 0.002}
EXPECTED_S = 0.02


def after_usual_steps(steps: int = 100) -> SlowSteps:
    slow_steps = SlowSteps()
    for _ in range(steps):
        slow_steps.usual(USUAL)
    return slow_steps


def observed(slow_steps: SlowSteps, parts: Seconds, expected_s: float = EXPECTED_S) -> SlowStep | None:
    if slow_steps.is_slow(sum(parts.values()), expected_s):
        return slow_steps.named(parts, expected_s)
    slow_steps.usual(parts)
    return None


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.WORK])
def test_the_part_that_took_longest_beyond_the_usual_is_the_cause(cause: Cause) -> None:
    slow = observed(after_usual_steps(), USUAL | {cause: USUAL.get(cause, 0.0) + 0.1})
    assert slow is not None
    assert slow.cause is cause
    assert slow.seconds == pytest.approx(0.12)


def test_a_part_that_is_always_long_is_not_the_cause() -> None:
    slow = observed(after_usual_steps(), USUAL | {Cause.DEVICE: 0.03, Cause.GC: 0.015})
    assert slow is None, "less than three times what was expected, and no pause"
    slow = observed(after_usual_steps(), USUAL | {Cause.DEVICE: 0.05, Cause.GC: 0.045})
    assert slow is not None
    assert slow.cause is Cause.GC, "the device took longer, but 16 of its 50 ms are usual"


def test_a_long_step_that_was_expected_is_work() -> None:
    parts = USUAL | {Cause.DEVICE: 0.1}
    slow = observed(after_usual_steps(), parts, expected_s=0.1)
    assert slow is not None, "readers notice it all the same"
    assert slow.cause is Cause.WORK


def test_where_a_long_step_was_expected_the_device_is_not_the_cause_of_a_longer_one() -> None:
    slow = observed(after_usual_steps(), USUAL | {Cause.DEVICE: 0.1, Cause.COMMANDS: 0.09}, expected_s=0.1)
    assert slow is not None
    assert slow.cause is Cause.COMMANDS


def test_short_steps_are_slow_only_if_they_take_10_ms_more() -> None:
    short = {part: seconds / 10 for part, seconds in USUAL.items()}
    slow_steps = SlowSteps()
    for _ in range(100):
        slow_steps.usual(short)
    assert observed(slow_steps, short | {Cause.SEND: 0.008}, expected_s=0.002) is None
    assert observed(slow_steps, short | {Cause.SEND: 0.012}, expected_s=0.002) is not None


def test_steps_of_a_slow_device_are_not_pauses() -> None:
    slow_steps, long = SlowSteps(), {Cause.DEVICE: 0.3}
    for _ in range(100):
        slow_steps.usual(long)
    assert observed(slow_steps, long, expected_s=0.3) is None
    assert observed(slow_steps, {Cause.DEVICE: 0.3, Cause.GC: 0.4}, expected_s=0.3) is not None


def test_a_load_with_longer_steps_becomes_usual() -> None:
    slow_steps, longer = after_usual_steps(), {Cause.DEVICE: 0.07}
    found = [observed(slow_steps, longer, expected_s=0.07) for _ in range(100)]
    assert found[0] is not None
    assert found[-1] is None


def test_without_an_expectation_only_pauses_are_slow() -> None:
    slow_steps = SlowSteps()
    assert observed(slow_steps, {Cause.DEVICE: 0.04}, expected_s=0.0) is None
    assert observed(slow_steps, {Cause.DEVICE: 0.11}, expected_s=0.0) is not None
