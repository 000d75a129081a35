"""Planning a step late enough for newcomers, and early enough for the device."""

from __future__ import annotations

from engine.rhythm import Rhythm


def run(
    rhythm: Rhythm, seconds: float, *, prompt_tokens: int = 0, steps: int = 30, now: float = 0.0
) -> float:
    for _ in range(steps):
        rhythm.prepared(prompt_tokens, host_s=0.002)
        now += seconds
        rhythm.completed(now, more=True)
    return now


def test_nothing_known_means_plan_at_once() -> None:
    assert Rhythm().plan_at() < 0


def test_a_step_is_planned_shortly_before_the_one_in_flight_ends() -> None:
    rhythm = Rhythm()
    now = run(rhythm, 0.02, steps=200)
    assert now + 0.010 < rhythm.plan_at() < now + 0.02 - 0.002


def test_a_step_with_prompt_tokens_is_known_to_take_longer() -> None:
    rhythm = Rhythm()
    now = run(rhythm, 0.01, steps=200)
    now = run(rhythm, 0.03, prompt_tokens=500, now=now)
    assert rhythm.plan_at() > now + 0.02


def test_a_preparation_that_took_long_makes_the_next_come_early() -> None:
    rhythm = Rhythm()
    now = run(rhythm, 0.02, steps=200)
    rhythm.prepared(0, host_s=0.012)
    assert rhythm.plan_at() < now + 0.005


def test_an_idle_device_waits_for_nobody() -> None:
    rhythm = Rhythm()
    now = run(rhythm, 0.02)
    rhythm.completed(now + 0.02, more=False)
    assert rhythm.plan_at() < 0


def test_decodes_that_were_slow_once_do_not_delay_mixed_steps_for_ever() -> None:
    """Under load every step has prompts in it, so there is no other step to learn from."""
    rhythm = Rhythm()
    now = run(rhythm, 0.08, steps=200)
    now = run(rhythm, 0.02, prompt_tokens=400, now=now)
    assert rhythm.plan_at() < now + 0.02
