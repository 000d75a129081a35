"""Positional randomness: uniform, independent, and the same everywhere."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.random import uniform

UINT64 = st.integers(0, 2**64 - 1)


@given(seed=UINT64, position=st.integers(0, 2**31))
def test_a_draw_lies_above_zero_and_at_most_at_one(seed: int, position: int) -> None:
    (value,) = uniform([seed], [position])
    assert 0.0 < value <= 1.0
    assert 0.0 < np.float32(value) <= 1.0


@given(st.lists(st.tuples(UINT64, st.integers(0, 2**31)), min_size=1, max_size=8))
def test_a_draw_does_not_depend_on_its_neighbours(pairs: list[tuple[int, int]]) -> None:
    together = uniform([seed for seed, _ in pairs], [position for _, position in pairs])
    alone = [uniform([seed], [position])[0] for seed, position in pairs]
    assert together.tolist() == alone


def test_draws_never_change_between_versions() -> None:
    """A request may be retried on a worker of another release: it must draw the same tokens there."""
    draws = uniform([0, 0, 1, 2**64 - 1], [0, 1, 0, 8191])
    assert draws.tolist() == [0.8833108082136427, 0.4315279970485101, 0.7497482413580302, 0.4397363521563733]


def test_draws_are_uniform_along_positions_and_along_seeds() -> None:
    n = 100_000
    for draws in (uniform(np.full(n, 7), np.arange(n)), uniform(np.arange(n), np.full(n, 7))):
        counts, _ = np.histogram(draws, bins=100, range=(0.0, 1.0))
        chi_square = float(((counts - n / 100) ** 2 / (n / 100)).sum())
        assert chi_square < 160.0  # 99 degrees of freedom: exceeded once in ten thousand
        assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.02


def test_neighbouring_seeds_do_not_share_a_shifted_sequence() -> None:
    sequences = np.stack([uniform(np.full(64, seed), np.arange(64)) for seed in range(200)])
    assert len(np.unique(sequences)) == sequences.size
