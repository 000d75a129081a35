"""Rates and percentiles of the last minute."""

from __future__ import annotations

import random

import numpy as np
import pytest

from router.dispatch.metrics.recent import QuantileWindow, RateWindow


def test_a_rate_is_the_mean_of_complete_seconds() -> None:
    window = RateWindow(100.2)
    for second in range(100, 110):
        window.add(30, second + 0.5)
    assert window.rate(110.1) == 30
    assert window.rate(112.1) == 18  # three of the last five seconds


def test_a_window_that_has_just_begun_counts_only_its_own_seconds() -> None:
    window = RateWindow(100.0)
    window.add(8, 100.5)
    assert window.rate(100.9) == 0
    assert window.rate(102.0) == 4


def test_a_minute_without_events_empties_the_window() -> None:
    window = RateWindow(0.0)
    window.add(1, 1.0)
    window.add(1, 59.0)
    assert sum(window.history(59.5)) == 1  # the current second is not complete
    assert sum(window.history(60.0)) == 2
    assert sum(window.history(500.0)) == 0
    assert len(window.history(500.0)) == 59


def test_percentiles_are_those_of_the_samples_within_a_few_percent() -> None:
    rng = random.Random(7)
    samples = [rng.lognormvariate(-3, 1) for _ in range(5000)]
    window = QuantileWindow()
    for sample in samples:
        window.add(sample, 5.0)
    found = window.quantiles((0.5, 0.9, 0.99), 6.0)
    assert found == pytest.approx(np.quantile(samples, (0.5, 0.9, 0.99)), rel=0.03)
    assert window.count(6.0) == 5000


def test_samples_older_than_a_minute_are_forgotten() -> None:
    window = QuantileWindow()
    window.add(9.0, 1.0)
    window.add(1.0, 55.0)
    assert window.count(59.0) == 2
    assert window.quantiles((0.5,), 65.0) == pytest.approx([1.0], rel=0.03)
    assert window.quantiles((0.5,), 200.0) is None


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e9])
def test_values_out_of_range_count_as_the_nearest_in_range(seconds: float) -> None:
    window = QuantileWindow()
    window.add(seconds, 0.0)
    assert window.quantiles((0.0, 1.0), 0.0) is not None
