"""The load generator's requests: what is drawn, when it arrives, and that a seed fixes both."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lib.load.workload import Fixed, LogNormal, Uniform, make_workload, parse_lengths


def test_the_same_seed_draws_the_same_requests() -> None:
    first, again, other = (
        make_workload(count=20, rate=3.0, input_lengths=Uniform(5, 50), output_lengths=Fixed(8), seed=seed)
        for seed in (7, 7, 8)
    )
    assert first == again
    assert first != other


def test_poisson_arrivals_have_the_asked_rate_and_exponential_gaps() -> None:
    workload = make_workload(count=20_000, rate=50.0, input_lengths=Fixed(1), output_lengths=Fixed(1))
    gaps = np.diff([work.arrival_s for work in workload])
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)  # the mark of the exponential distribution


def test_an_infinite_rate_sends_everything_at_once() -> None:
    workload = make_workload(count=10, rate=math.inf, input_lengths=Fixed(4), output_lengths=Fixed(1))
    assert [work.arrival_s for work in workload] == [0.0] * 10


def test_the_first_request_never_waits() -> None:
    workload = make_workload(count=3, rate=0.1, input_lengths=Fixed(4), output_lengths=Fixed(1))
    assert workload[0].arrival_s == 0.0


@given(length=st.integers(1, 300), shared=st.integers(0, 300))
def test_prompts_have_exactly_the_drawn_length_and_differ_in_at_least_one_token(
    length: int, shared: int
) -> None:
    one, two = make_workload(
        count=2, rate=1.0, input_lengths=Fixed(length), output_lengths=Fixed(1), shared_prefix=shared
    )
    assert len(one.prompt) == len(two.prompt) == length
    common = min(shared, length - 1)
    assert one.prompt[:common] == two.prompt[:common]


def test_text_prompts_have_one_word_a_token() -> None:
    (work,) = make_workload(count=1, rate=1.0, input_lengths=Fixed(40), output_lengths=Fixed(1), as_text=True)
    assert isinstance(work.prompt, str)
    assert len(work.prompt.split()) == 40


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("512", Fixed(512)),
        ("uniform:10:20", Uniform(10, 20)),
        ("lognormal:400:0.8:4000", LogNormal(400, 0.8, 4000)),
    ],
)
def test_lengths_are_read_from_text(text: str, lengths: object) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    "text", ["", "0", "-4", "512:7", "uniform:9", "uniform:9:3", "lognormal:4:x:9", "zipf:2"]
)
def test_wrong_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"lengths start at 1|is neither"):
        parse_lengths(text)


def test_drawn_lengths_stay_within_their_bounds() -> None:
    rng = np.random.default_rng(0)
    assert set(Uniform(3, 5).draw(rng, 1000)) == {3, 4, 5}
    skewed = LogNormal(median=100, sigma=1.5, high=500).draw(rng, 5000)
    assert min(skewed) >= 1
    assert max(skewed) == 500
    assert np.median(skewed) == pytest.approx(100, rel=0.1)
