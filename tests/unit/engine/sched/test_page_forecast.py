"""The pages that running requests will want at once, against a walk through time."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.sched.page_forecast import OutputLengths, peak_growth


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


def request(output: int, *, max_tokens: int = 1000, ignore_eos: bool = False) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    return Request(id=0, prompt=[1], sampling=sampling, output=[1] * output)


def test_an_answer_that_only_its_length_can_end_is_forecast_exactly() -> None:
    assert OutputLengths().remaining([request(20, max_tokens=100, ignore_eos=True)])[0] == 80


def test_forecasts_follow_the_answers_that_ended() -> None:
    lengths = OutputLengths()
    before = lengths.remaining([request(0)])[0]
    for _ in range(300):
        lengths.ended(request(40))
    assert 35 < lengths.remaining([request(0)])[0] < 45 < before


def test_a_forecast_never_exceeds_what_is_allowed() -> None:
    assert OutputLengths().remaining([request(90, max_tokens=100)])[0] <= 10
