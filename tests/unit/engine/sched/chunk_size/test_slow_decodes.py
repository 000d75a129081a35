"""Chunks beside decodes that take most of the ITL target alone, or exceed it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sched.chunk_size.itl_controller import ITLController
from engine.sched.chunk_size.step_targets import longest_step_s, spaced_steps_s

TARGET = 0.02
LARGEST = 16_384


class Device:
    """Steps of `plain` seconds, and `token` for each prompt token beyond `free`: weights are read anyway."""

    def __init__(self, plain: float, token: float, free: int = 0) -> None:
        self.controller = ITLController(TARGET, LARGEST)
        self.plain, self.token, self.free = plain, token, free
        self.steps: list[tuple[int, float]] = []
        """Prompt tokens and seconds of each."""

    def step(self, pending: int = LARGEST) -> None:
        tokens = min(pending, self.controller.budget)
        seconds = self.plain + self.token * max(tokens - self.free, 0)
        self.controller.observe(tokens, seconds)
        self.steps.append((tokens, seconds))

    def run(self, count: int, pending: int = LARGEST) -> list[tuple[int, float]]:
        """The last half of this number of steps."""
        for _ in range(count):
            self.step(pending)
        return self.steps[-count // 2 :]


@settings(max_examples=60)
@given(
    plain=st.floats(0.014, 0.3),
    token=st.floats(5e-6, 2e-4),
    free=st.integers(0, 200),
    measured=st.booleans(),
)
def test_prompts_in_every_step_add_half_the_time_of_slow_decodes(
    plain: float, token: float, free: int, measured: bool
) -> None:
    device = Device(plain, token, free)
    if measured:
        device.run(20, pending=0)
    settled = [step for step in device.run(800) if step[0]]
    slowest = max(seconds for _, seconds in settled)
    allowed = max(TARGET, 1.5 * plain)
    assert slowest <= max(1.05 * allowed, plain + 64 * token)
    wanted = free + (allowed - plain) / token
    usual = sorted(tokens for tokens, _ in settled)[len(settled) // 2]
    assert usual >= 0.9 * min(wanted, LARGEST)


@given(
    plain=st.floats(0.001, 0.0133),
    token=st.floats(5e-6, 5e-5),
    pending=st.lists(st.sampled_from([0, 0, 100, LARGEST]), max_size=300),
)
def test_where_the_target_leaves_prompts_a_third_of_a_step_chunks_do_not_depend_on_decodes_alone(
    plain: float, token: float, pending: list[int]
) -> None:
    device, blind = Device(plain, token), Device(plain, token)
    for tokens in pending:
        device.step(tokens)
        if tokens:
            blind.step(tokens)
        assert device.controller.usual_budget == blind.controller.usual_budget


def test_decodes_that_grow_beside_prompts_in_every_step_are_measured_again() -> None:
    device = Device(0.006, 1e-4)
    device.run(20, pending=0)
    device.run(200)
    device.plain = 0.04
    device.run(800)
    assert device.steps[-1][1] == pytest.approx(0.06, rel=0.05)
    assert sum(not tokens for tokens, _ in device.steps[-800:]) == 3


def test_chunks_shrink_to_the_target_when_slow_decodes_end() -> None:
    device = Device(0.04, 1e-4)
    device.run(40, pending=0)
    device.run(100)
    device.plain = 0.004
    device.run(600)
    assert device.steps[-1][1] == pytest.approx(TARGET, rel=0.1)


def test_a_stall_between_decodes_hardly_lengthens_the_steps_after_it() -> None:
    device = Device(0.006, 2e-5)
    device.run(40, pending=0)
    device.run(40)
    device.controller.observe(0, 5.0)
    assert max(seconds for _, seconds in device.run(40)) <= 1.01 * TARGET


@given(st.lists(st.floats(0.0, 0.9), min_size=20, max_size=20), st.integers(4, 12))
def test_a_host_that_sees_the_end_of_some_steps_late_does_not_change_the_chunks(
    late: list[float], every: int
) -> None:
    """Such a step looks too long, and the next one too short."""
    device = Device(0.03, 1e-4)
    device.run(60, pending=0)
    device.run(60)
    for index, share in enumerate(late * 6):
        delay = share * 0.03 if index % every == 0 else 0.0
        device.controller.observe(0, 0.03 + delay)
        device.controller.observe(0, 0.03 - delay)
        device.controller.observe(0, 0.03)
        device.step()
        assert device.steps[-1][1] == pytest.approx(0.045, rel=0.05)


@given(st.floats(0.001, 1.0), st.floats(0.0001, 2.0))
def test_a_step_may_take_the_target_or_half_as_long_again_as_its_decodes(target: float, plain: float) -> None:
    longest = longest_step_s(target, plain)
    assert longest >= target
    assert longest >= 1.5 * plain
    assert longest in (target, 1.5 * plain)


@given(st.floats(0.001, 1.0), st.floats(1.0, 5.0), st.floats(0.0001, 2.0))
def test_a_mean_that_decodes_alone_meet_stands(mean: float, pause: float, plain: float) -> None:
    held, longest = spaced_steps_s(mean, pause * mean, plain)
    if plain < mean:
        assert (held, longest) == (mean, pause * mean)
    else:
        assert held == 1.5 * plain
        assert longest >= 2 * held - plain - 1e-9, "every second step may contain prompts"
