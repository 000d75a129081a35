"""The step-time model: what it predicts, and how it learns."""

from __future__ import annotations

import random
from dataclasses import astuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.placement import StepTime, StepTimeFit, StepWork

SCALES = st.floats(0.2, 50.0)
WORKS = st.builds(
    StepWork,
    prompt_tokens=st.integers(0, 16_384),
    attention=st.floats(0, 1e8),
    decodes=st.integers(0, 256),
    context_tokens=st.floats(0, 1e6),
)


def device(scale: float, shape: random.Random) -> StepTime:
    """One that is `scale` times as slow as the prior, and differs a little in each coefficient."""
    return StepTime(*(scale * shape.uniform(0.8, 1.25) * value for value in astuple(StepTime())))


def some_step(rng: random.Random) -> StepWork:
    prompt = rng.choice([0, 0, rng.randint(16, 512), rng.randint(512, 8192)])
    decodes = rng.randint(0 if prompt else 1, 100)
    context = decodes * rng.uniform(200, 4000)
    return StepWork(prompt, StepWork.attention_of(rng.randint(0, 4096), prompt), decodes, context)


def test_the_prior_serves_until_the_first_step() -> None:
    assert StepTimeFit().model == StepTime()


@given(SCALES)
def test_one_step_tells_how_fast_the_device_is(scale: float) -> None:
    fit = StepTimeFit()
    prior = StepTime()
    fit.observe(
        StepWork(2048, 2048 * 1024, 10, 10_000),
        scale * prior.seconds(StepWork(2048, 2048 * 1024, 10, 10_000)),
    )
    decode = StepWork(0, 0.0, 20, 40_000)
    assert fit.model.seconds(decode) == pytest.approx(scale * prior.seconds(decode), rel=0.3)


@settings(max_examples=15)
@given(SCALES, st.integers(0, 1 << 20))
def test_it_predicts_steps_that_it_has_not_seen(scale: float, seed: int) -> None:
    rng = random.Random(seed)
    truth, fit = device(scale, rng), StepTimeFit()
    for _ in range(300):
        work = some_step(rng)
        fit.observe(work, truth.seconds(work) * rng.uniform(0.98, 1.02))
    errors = []
    for _ in range(50):
        work = some_step(rng)
        errors.append(abs(fit.model.seconds(work) / truth.seconds(work) - 1))
    assert sum(errors) / len(errors) < 0.06


@settings(max_examples=40)
@given(st.lists(st.tuples(WORKS, st.floats(-1.0, 100.0, allow_nan=False)), max_size=60))
def test_whatever_is_reported_coefficients_stay_positive_and_finite(
    steps: list[tuple[StepWork, float]],
) -> None:
    fit = StepTimeFit()
    for work, seconds in steps:
        fit.observe(work, seconds)
    assert all(0.0 < value < 1e6 for value in astuple(fit.model))


def test_a_stall_does_not_change_the_model_much() -> None:
    rng, fit = random.Random(1), StepTimeFit()
    for _ in range(200):
        work = some_step(rng)
        fit.observe(work, StepTime().seconds(work))
    work = StepWork(0, 0.0, 30, 60_000)
    before = fit.model.seconds(work)
    fit.observe(work, 5.0)
    assert fit.model.seconds(work) == pytest.approx(before, rel=0.15)


@given(
    seconds=st.floats(0.001, 0.2),
    decodes=st.integers(0, 200),
    context=st.floats(0, 500_000),
    pairs=st.floats(0, 10_000),
)
def test_tokens_within_a_time_take_that_time(
    seconds: float, decodes: int, context: float, pairs: float
) -> None:
    model = StepTime()
    tokens = model.prompt_tokens_within(seconds, decodes, context, pairs)
    assert tokens >= 0.0
    if tokens >= 1.0:
        work = StepWork(int(tokens), int(tokens) * pairs, decodes, context)
        assert model.seconds(work) <= seconds * (1 + 1e-9)
        more = StepWork(int(tokens) + 2, (int(tokens) + 2) * pairs, decodes, context)
        assert pairs == 0.0 or model.seconds(more) >= seconds * (1 - 1e-9)


def test_while_reading_the_weights_bounds_a_step_tokens_cost_their_attention_alone() -> None:
    model = StepTime()
    empty = model.step + model.prompts + model.weights
    tokens = model.prompt_tokens_within(empty + 100 * 10_000 * model.pair, 0, 0.0, 10_000)
    assert tokens == pytest.approx(100)
    assert tokens < model.weights / model.row
