"""What is believed of workers that do only one kind of work."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from router.placement import PRIOR, StepTime, StepWork
from router.placement.measured import StepTimes

TRUE = StepTime(
    step=0.9e-3, weights=4.2e-3, row=22e-6, decode=1e-6, context=33e-9, prompts=1.5e-3, pair=1.1e-9
)
MANY_DECODES = StepWork(0, 0.0, 200, 200 * 700.0)
MIXED = StepWork(300, 2e5, 100, 100 * 700.0)


def prompts_only(rng: random.Random) -> StepWork:
    tokens = rng.randrange(50, 2048)
    return StepWork(tokens, StepWork.attention_of(0, tokens), 0, 0.0)


def decodes(rng: random.Random) -> StepWork:
    count = rng.randrange(1, 300)
    tokens = rng.randrange(1, 400) if rng.random() < 0.3 else 0
    return StepWork(tokens, StepWork.attention_of(0, tokens), count, count * rng.uniform(300, 1200))


def observed(steps: int, slowness: float = 1.0) -> StepTimes:
    """Prefill worker "p", which is `slowness` times slower than decode worker "d"."""
    rng, times = random.Random(1), StepTimes()
    times.add("p", PRIOR)
    times.add("d", PRIOR)
    for _ in range(steps):
        for name, draw, factor in (("p", prompts_only, slowness), ("d", decodes, 1.0)):
            work = draw(rng)
            times.observe(name, work, factor * TRUE.seconds(work) * rng.uniform(0.98, 1.03))
    return times


@pytest.mark.parametrize("work", [MANY_DECODES, MIXED])
def test_a_worker_that_only_reads_prompts_learns_from_others_what_decodes_cost(work: StepWork) -> None:
    times = observed(3000)
    assert times.of("p").seconds(work) == pytest.approx(TRUE.seconds(work), rel=0.06)


def test_a_worker_that_only_decodes_learns_from_others_what_prompts_cost() -> None:
    true = replace(TRUE, prompts=10 * TRUE.prompts, pair=10 * TRUE.pair)
    rng, times = random.Random(1), StepTimes()
    times.add("p", PRIOR)
    times.add("d", PRIOR)
    for _ in range(2000):
        count = rng.randrange(1, 300)
        decode = StepWork(0, 0.0, count, count * rng.uniform(300, 1200))
        for name, work in (("p", prompts_only(rng)), ("d", decode)):
            times.observe(name, work, true.seconds(work) * rng.uniform(0.98, 1.03))
    prompt = StepWork(2000, StepWork.attention_of(0, 2000), 0, 0.0)
    assert times.of("d").seconds(prompt) == pytest.approx(true.seconds(prompt), rel=0.1)


def test_a_worker_that_does_both_is_judged_by_its_own_steps() -> None:
    times = observed(1000, slowness=3.0)
    assert times.of("d").seconds(MANY_DECODES) == pytest.approx(TRUE.seconds(MANY_DECODES), rel=0.06)


def test_before_any_step_the_prior_holds() -> None:
    times = StepTimes()
    times.add("p", PRIOR)
    times.add("d", PRIOR)
    assert times.of("p") == PRIOR


def test_a_slow_worker_is_expected_to_be_slow_at_what_it_has_not_done() -> None:
    times = observed(1000, slowness=2.0)
    assert times.of("p").seconds(MANY_DECODES) > 1.2 * times.of("d").seconds(MANY_DECODES)
