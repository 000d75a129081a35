"""What attention reads, by the windows of a model's layers: placement, simulator and workers agree on it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kv_groups import group_layers, window_shares
from router.placement import EVERYTHING, PRIOR, Reach, StepWork
from router.placement.measured import StepTimes
from router.placement.policies.predict import pace_of
from simulator.device import H200_8B
from tests.unit.router.placement.views import loaded

WINDOWS = (1024, None, None, 1024, 4096, None)
REACH = Reach(((1024, 1 / 3), (4096, 1 / 6)))


def test_shares_are_those_of_the_groups_layers() -> None:
    assert Reach(window_shares(group_layers(WINDOWS, 100_000))) == REACH
    assert Reach(window_shares(group_layers([None] * 3, 1000))) == EVERYTHING


@given(st.integers(1, 20_000), st.integers(1, 64))
def test_equal_contexts_are_read_as_far_as_each_layer_sees(context: int, rows: int) -> None:
    read = sum(min(context, window or context) for window in WINDOWS) / len(WINDOWS)
    assert REACH.of(rows * context, rows) == pytest.approx(rows * read)


def test_a_fit_predicts_contexts_beyond_the_window() -> None:
    """After steps at short contexts, by which a time linear in the context is wrong for long ones."""
    device, rng = replace(H200_8B, reach=REACH), random.Random(1)
    errors = {}
    for reach in (REACH, EVERYTHING):
        times = StepTimes()
        times.add("w", PRIOR)
        for _ in range(400):
            decodes = rng.randint(1, 100)
            work = StepWork(0, 0.0, decodes, decodes * rng.uniform(100, 6000))
            times.observe("w", reach.of_step(work), device.seconds(work))
        there = replace(loaded("w"), step_time=times.of("w"), reach=reach)
        far = pace_of(there, 64, 64 * 40_000.0, 1000.0).plain_s
        errors[reach] = abs(far / device.seconds(StepWork(0, 0.0, 64, 64 * 40_000.0)) - 1)
    assert errors[REACH] < 0.1 < errors[EVERYTHING]
