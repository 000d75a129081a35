"""What a step is expected to take follows the load, and not single pauses."""

from __future__ import annotations

import random

import pytest

from engine.loop.pauses.expected_time import ExpectedTime


def step_s(cost: float, decodes: int) -> float:
    return 0.004 + 0.00005 * decodes + (0.001 + 0.00002 * cost if cost else 0.0)


def after(steps: int, largest: int = 2048) -> ExpectedTime:
    expected, draw = ExpectedTime(), random.Random(5)
    for _ in range(steps):
        cost = draw.choice([0, 0, draw.randint(16, largest)])
        decodes = draw.randint(1, 100)
        expected.observe(cost, decodes, step_s(cost, decodes) * draw.uniform(0.9, 1.1))
    return expected


def test_nothing_is_expected_of_what_was_never_seen() -> None:
    expected = ExpectedTime()
    assert expected.of(0, 8) == 0.0
    expected.observe(0, 8, 0.005)
    assert expected.of(0, 100) == 0.005, "the nearest batch size"
    assert expected.of(512, 8) == 0.0


@pytest.mark.parametrize("cost", [0, 64, 1000, 2048, 4096])
@pytest.mark.parametrize("decodes", [1, 30, 100])
def test_steps_are_expected_within_a_factor_of_two(cost: int, decodes: int) -> None:
    expected = after(500)
    assert step_s(cost, decodes) / 2 < expected.of(cost, decodes) < 2 * step_s(cost, decodes)


def test_prompts_of_one_size_tell_what_larger_ones_take() -> None:
    expected = ExpectedTime()
    for _ in range(50):
        expected.observe(512, 0, 0.01)
    assert expected.of(2048, 0) == pytest.approx(0.04)


def test_one_pause_changes_little() -> None:
    expected = after(500)
    before = expected.of(0, 50), expected.of(1000, 50)
    expected.observe(0, 50, 2.0)
    expected.observe(1000, 50, 2.0)
    assert expected.of(0, 50) < 1.3 * before[0]
    assert expected.of(1000, 50) < 1.3 * before[1]


def test_a_slower_device_is_noticed_within_tens_of_steps() -> None:
    expected = after(500)
    for _ in range(50):
        expected.observe(0, 50, 0.06)
    assert expected.of(0, 50) > 0.04
