from __future__ import annotations

import math

import pytest

from engine.sched.timing.prefill_rate import PrefillRate


def test_the_rate_is_infinite_until_a_step_with_prompts_was_measured() -> None:
    rate = PrefillRate()
    rate.observe(0, 0.5)
    rate.observe(100, 0.0)
    assert rate.tokens_a_second == math.inf


def test_the_rate_is_a_running_mean_of_steps_with_prompts() -> None:
    rate = PrefillRate()
    rate.observe(100, 0.5)
    rate.observe(0, 10.0)
    assert rate.tokens_a_second == pytest.approx(200.0)
    for _ in range(100):
        rate.observe(400, 0.5)
    assert rate.tokens_a_second == pytest.approx(800.0, rel=0.01)
