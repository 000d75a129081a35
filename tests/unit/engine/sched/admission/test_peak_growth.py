"""The most pages that running requests need at once, against a walk through time."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from engine.sched.admission.page_forecast import peak_growth


def walk(requests: list[tuple[int, int]]) -> int:
    """Let all grow page by page; each gives everything back when it has grown enough."""
    peak = 0
    for time in range(max((growth for _, growth in requests), default=0) + 1):
        alive = [(held, growth) for held, growth in requests if growth >= time]
        gone = sum(held for held, growth in requests if growth < time)
        peak = max(peak, len(alive) * time - gone)
    return peak


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), max_size=12))
def test_peak_growth_is_that_of_a_walk_through_time(requests: list[tuple[int, int]]) -> None:
    assert peak_growth(*np.array(requests, dtype=np.int64).reshape(-1, 2).T) == walk(requests)
