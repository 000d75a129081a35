"""Steps with prompts, spaced so that the mean time between an answer's tokens keeps its target."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import STEP_SHARE, SchedulerConfig
from engine.core.request import Request
from engine.loop.engine import Engine
from engine.sched.chunk_size.tpot_controller import TPOTController
from engine.sched.output_lengths import OutputLengths
from tests.engine_config import engine_config
from tests.unit.engine.engines import make_request, run
from tests.unit.engine.fake_runner import FakeRunner
from tests.unit.engine.sched.planning import request

TARGET = 0.010
LARGEST = 16384


class Device:
    """Steps of `plain` seconds; n prompt tokens add `fixed` + n * `token`. An answer decodes all the time."""

    def __init__(
        self,
        plain: float,
        fixed: float,
        token: float,
        answer: Request,
        target: float = TARGET,
        pause: float | None = None,
    ) -> None:
        self.controller = TPOTController(target, pause or 1.6 * target, LARGEST, OutputLengths())
        self.plain, self.fixed, self.token = plain, fixed, token
        self.answers = [answer]
        self.now = 0.0
        self.steps: list[tuple[int, float]] = []
        """Prompt tokens and seconds of each."""

    def step(self, pending: int = LARGEST) -> int:
        """Computes up to `pending` prompt tokens, as many as are allowed."""
        self.controller.plan(self.answers, self.now, prompts=pending > 0)
        tokens = min(pending, self.controller.budget)
        seconds = self.plain + (self.fixed + self.token * tokens if tokens else 0.0)
        self.now += seconds
        self.controller.observe(tokens, seconds)
        self.steps.append((tokens, seconds))
        for answer in self.answers:
            answer.output.append(5)
        return tokens

    def mean(self, last: int) -> float:
        return sum(seconds for _, seconds in self.steps[-last:]) / last


def answer(tokens: int, produced: int = 1) -> Request:
    each = request(1, 100, tokens)
    each.output = [5] * produced
    return each


def test_a_step_without_decodes_or_prompts_leaves_the_budget_alone_whatever_the_debt() -> None:
    device = Device(0.005, 0.002, 2e-5, answer(100_000))
    device.step()
    device.controller.observe(LARGEST, 1.0)  # debt
    budget = device.controller.budget

    device.controller.plan([], device.now, prompts=True)
    assert device.controller.budget == budget
    device.controller.plan(device.answers, device.now, prompts=False)
    assert device.controller.budget == budget
    device.controller.plan(device.answers, device.now, prompts=True)
    assert device.controller.budget != budget


@settings(max_examples=40)
@given(
    plain=st.floats(0.001, 0.0090),
    fixed=st.floats(0.0, 0.004),
    token=st.floats(5e-6, 1e-4),
)
def test_with_prompts_all_the_time_steps_meet_the_target_in_the_mean(
    plain: float, fixed: float, token: float
) -> None:
    device = Device(plain, fixed, token, answer(100_000))
    for _ in range(1500):
        device.step()
    tokens = sum(tokens for tokens, _ in device.steps[-1000:])
    assert tokens > 0
    assert device.mean(1000) <= TARGET + 0.1 * LARGEST * token / 100


@settings(max_examples=40)
@given(plain=st.floats(0.002, 0.008), fixed=st.floats(0.001, 0.003))
def test_spaced_steps_read_more_prompt_tokens_than_short_ones_with_the_same_mean(
    plain: float, fixed: float
) -> None:
    token = 2e-5
    device = Device(plain, fixed, token, answer(100_000))
    for _ in range(1500):
        device.step()
    read = sum(tokens for tokens, _ in device.steps[-1000:]) / sum(s for _, s in device.steps[-1000:])
    in_every_step = max(device.mean(1000) - plain - fixed, 0.0) / token / device.mean(1000)
    assert read > in_every_step


def test_a_step_with_prompts_is_followed_by_steps_without_that_make_up_for_it() -> None:
    device = Device(0.007, 0.002, 2e-5, answer(100_000))
    for _ in range(1500):
        device.step()
    pattern = [bool(tokens) for tokens, _ in device.steps[-200:]]
    assert 0 < sum(pattern) / len(pattern) < 0.5
    assert not any(one and other for one, other in pairwise(pattern))


def after_few_prompts(target: float, plain: float, pause: float | None = None) -> Device:
    device = Device(plain, 0.002, 2e-5, answer(2000), target, pause)
    for _ in range(1000):
        device.step(pending=0)
    device.step(pending=100)
    device.step(pending=0)
    return device


def test_where_few_steps_carry_prompts_they_follow_each_other() -> None:
    device = after_few_prompts(TARGET, plain=0.005)
    assert all(device.step() > 0 for _ in range(10))


@settings(max_examples=60)
@given(
    target=st.floats(0.005, 0.1),
    pause=st.floats(1.0, 8.0),
    plain=st.floats(0.1, 0.9),
    token=st.floats(5e-6, 1e-4),
)
def test_no_step_with_prompts_takes_longer_than_the_pause_target(
    target: float, pause: float, plain: float, token: float
) -> None:
    """Once the cost of a token is known; 64 tokens are always allowed."""
    pause_s = pause * target
    device = Device(plain * target, 0.0, token, answer(2000), target, pause_s)
    for _ in range(2000):
        device.step()
    settled = device.steps[-200:]
    assert any(tokens for tokens, _ in settled)
    assert max(seconds for _, seconds in settled) <= 1.05 * pause_s + 64 * token


def test_an_answer_that_would_miss_the_target_forbids_consecutive_steps_with_prompts() -> None:
    device = Device(0.005, 0.002, 2e-5, answer(2000))
    for _ in range(1000):
        device.step(pending=0)
    device.step(pending=100)
    device.step(pending=0)
    assert device.step() > 0
    device.answers.append(answer(3))
    assert device.step() == 0


@settings(max_examples=40)
@given(plain=st.floats(0.0098, 0.2), fixed=st.floats(0.0, 0.002), token=st.floats(5e-6, 2e-4))
def test_decodes_that_are_too_slow_by_themselves_get_prompts_that_add_half_their_time(
    plain: float, fixed: float, token: float
) -> None:
    device = Device(plain, fixed, token, answer(100_000))
    for _ in range(600):
        device.step()
    settled = device.steps[-200:]
    assert sum(tokens > 0 for tokens, _ in settled) >= 60, "every second step, or third"
    least = plain + fixed + 64 * token
    assert device.mean(200) <= max(1.52 * plain, least)
    assert device.mean(200) >= min(1.25 * plain, plain + 0.2 * LARGEST * token)


@given(st.floats(0.0093, 0.0096))
def test_decodes_that_leave_almost_nothing_delay_prompts_but_do_not_starve_them(plain: float) -> None:
    device = Device(plain, 0.002, 2e-5, answer(100_000))
    for _ in range(2000):
        device.step()
    assert sum(tokens > 0 for tokens, _ in device.steps[-100:]) >= 2


def test_an_answer_that_came_in_the_middle_brings_neither_credit_nor_debt() -> None:
    moved = answer(2000, produced=1900)
    device = Device(0.0095, 0.002, 2e-5, moved)
    device.step(pending=0)
    assert moved.scheduling.decodes_since is not None
    saved = STEP_SHARE * TARGET * (len(moved.output) - 1) - (device.now - moved.scheduling.decodes_since)
    assert abs(saved) < 0.001


def test_a_step_target_and_a_mean_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="use one"):
        SchedulerConfig(itl_target_s=0.02, tpot_target_s=0.02)


@pytest.mark.parametrize("tpot", [None, 0.03])
def test_a_pause_target_needs_a_mean_that_it_does_not_undercut(tpot: float | None) -> None:
    with pytest.raises(ValueError, match="pause_target_s"):
        SchedulerConfig(tpot_target_s=tpot, pause_target_s=0.02)


def test_an_engine_spaces_the_chunks_of_a_prompt_beside_decodes() -> None:
    config = engine_config(
        model_path=Path("none"), page_size=4, num_pages=2000, chunk_budget=512, tpot_target_s=1.0
    )
    runner: Any = FakeRunner(config.page_size, config.num_pages)

    def clock() -> float:
        """Each step takes 0.5 s, and 0.01 s more for every prompt token."""
        tokens = [length for step in runner.steps for _, _, length in step]
        return sum(0.5 if length == 1 else 0.01 * length for length in tokens)

    engine = Engine(config, runner=runner, clock=clock)
    engine.submit(make_request(1, [1, 2, 3], max_tokens=600, ignore_eos=True))
    for _ in range(8):
        engine.step()
    run(engine, make_request(2, [i % 90 for i in range(2000)], max_tokens=2, ignore_eos=True))
    lengths = [sum(length for request, _, length in step if request == 2) for step in runner.steps]
    first = next(i for i, length in enumerate(lengths) if length)
    last = max(i for i, length in enumerate(lengths) if length > 1)
    assert 0 in lengths[first:last], "steps without prompts between those with"
    decodes = lengths[first : last + 1]
    assert _seconds(decodes) / len(decodes) < 1.1, "seconds a step, in the mean"


def _seconds(prompt_tokens: Sequence[int]) -> float:
    return sum(0.5 + 0.01 * tokens for tokens in prompt_tokens)
