"""Planning a step late enough for newcomers, and early enough for the device."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.sched.timing.plan_timing import PlanTiming

HOST_S = 0.002


@dataclass
class Device:
    """Steps of known lengths under an engine that overlaps, by the same calls in the same order."""

    timing: PlanTiming
    now: float = 0.0
    ends: float = 0.0
    """When the step in flight will be done."""
    running: tuple[int, float] | None = None
    idle: float = 0.0
    leads: list[float] = field(default_factory=list)
    """How long before a step's end the next was planned."""

    def run(
        self, steps: Iterable[tuple[int, float]], host_s: float = HOST_S, host_prompts_s: float = 0.0
    ) -> None:
        """Run steps, each given by its prompt tokens and how long it takes; the host takes longer with
        prompts.
        """
        host_decodes_s = host_s
        for prompt_tokens, seconds in steps:
            host_s = host_decodes_s + (host_prompts_s if prompt_tokens else 0.0)
            if self.running is not None:
                self.now = max(self.now, self.timing.plan_at(prompt_tokens > 0))
                self.leads.append(self.ends - self.now)
            self.now += host_s
            dry = self.running is not None and self.ends <= self.now
            self.timing.prepared(prompt_tokens, host_s, self.now, dry=dry)
            if self.running is not None:
                waited = not dry
                if not waited:
                    self.idle += self.now - self.ends
                self.now = max(self.now, self.ends) + 0.0001
                began = self.ends if waited else self.now
                self.timing.completed(self.now, waited=waited, more=True)
            else:
                began = self.now
            self.running = (prompt_tokens, seconds)
            self.ends = began + seconds


def decodes(seconds: float, count: int = 200) -> list[tuple[int, float]]:
    return [(0, seconds)] * count


def mixed(base: float, per_token: float, *tokens: int, count: int = 200) -> list[tuple[int, float]]:
    return list(itertools.islice(itertools.cycle((n, base + per_token * n) for n in tokens), count))


def test_nothing_known_means_plan_at_once() -> None:
    assert PlanTiming().plan_at(prompts=False) < 0


def test_a_step_is_planned_shortly_before_the_one_in_flight_ends() -> None:
    device = Device(PlanTiming())
    device.run(decodes(0.02))
    assert device.idle == 0.0
    assert HOST_S < device.leads[-1] < 3 * HOST_S


def test_a_step_with_prompt_tokens_is_known_to_take_longer() -> None:
    device = Device(PlanTiming())
    device.run(decodes(0.01))
    device.run(mixed(0.01, 20e-6, 500, 0, 900))
    assert max(device.leads[-3:]) < 3 * HOST_S
    assert device.idle < 0.001


def test_a_preparation_that_took_long_makes_the_next_come_early() -> None:
    device = Device(PlanTiming())
    device.run(decodes(0.02))
    device.run(decodes(0.02, 1), host_s=0.012)
    device.run(decodes(0.02, 1))
    assert device.leads[-1] > 0.012


def test_decodes_that_were_slow_once_do_not_delay_mixed_steps_for_ever() -> None:
    """Under load every step has prompts in it, so there is no other step to learn from."""
    device = Device(PlanTiming())
    device.run(decodes(0.08))
    device.run(mixed(0.01, 20e-6, 400, count=30))
    idle = device.idle
    device.run(mixed(0.01, 20e-6, 400))
    assert device.idle == idle


def test_a_device_that_runs_dry_is_not_taken_for_a_slow_one() -> None:
    """An estimate that is too long makes steps late; that they are late must not confirm it."""
    device = Device(PlanTiming())
    device.run(mixed(0.007, 100e-6, 0, 800))
    device.run(mixed(0.007, 20e-6, 800, 200, 1000, count=40))
    idle = device.idle
    device.run(mixed(0.007, 20e-6, 800, 200, 1000))
    assert device.idle == idle


def test_steps_of_all_kinds_with_noise_keep_the_device_busy() -> None:
    rng = random.Random(1)
    device = Device(PlanTiming())
    for _ in range(2000):
        tokens = rng.choice([0, 0, rng.randrange(30, 1500)])
        device.run([(tokens, (0.007 + 22e-6 * tokens) * rng.uniform(0.95, 1.1))])
    assert device.idle < 0.01 * device.now
    assert statistics.fmean(device.leads) < 4 * HOST_S


def test_steps_with_prompts_that_surprise_do_not_make_others_early() -> None:
    rng = random.Random(1)
    device = Device(PlanTiming())
    for _ in range(300):
        surprise = 0.02 + rng.uniform(-0.006, 0.006)
        device.run([(700, surprise), *decodes(0.01, 3)])
    before = len(device.leads)
    device.run([(700, 0.02), *decodes(0.01, 3), (0, 0.01)])
    in_decodes = device.leads[before + 2 :]
    assert max(in_decodes) < 2 * HOST_S


def test_a_step_without_prompts_is_planned_later_if_the_host_is_faster_at_it() -> None:
    device = Device(PlanTiming())
    device.run(mixed(0.02, 20e-6, 0, 0, 500, count=201), host_prompts_s=0.003)
    *_, decode, _, prompt = device.leads
    assert HOST_S < decode < HOST_S + 0.002
    assert HOST_S + 0.003 < prompt < HOST_S + 0.005
    assert device.idle < 0.001


def test_who_comes_in_the_last_moment_does_not_make_the_next_plan_early() -> None:
    """The device runs dry for them, but no step was shorter than expected."""
    device = Device(PlanTiming())
    device.run(mixed(0.02, 20e-6, 0, 0, 500, count=201), host_prompts_s=0.003)
    device.run(decodes(0.02, 3))
    before = device.leads[-1]
    device.now = device.timing.plan_at(prompts=False)
    device.run([(500, 0.03)], host_prompts_s=0.003)
    assert device.idle > 0
    device.run([(0, 0.02)] * 3)
    assert device.leads[-1] < before + 0.0002


def test_a_slow_preparation_is_not_taken_for_a_short_step() -> None:
    def lead(host_s: float, *, dry: bool) -> float:
        device = Device(PlanTiming())
        device.run(decodes(0.02))
        device.timing.prepared(0, host_s, device.now, dry=dry)
        return device.ends - device.timing.plan_at(prompts=False)

    assert lead(0.012, dry=True) == lead(0.012, dry=False)
    assert lead(HOST_S, dry=True) > lead(HOST_S, dry=False)


def test_a_host_slower_than_the_device_plans_at_once() -> None:
    device = Device(PlanTiming())
    device.run(decodes(0.003), host_s=0.006)
    assert device.timing.plan_at(prompts=False) < device.now


def test_a_step_for_an_idle_device_is_planned_at_once() -> None:
    device = Device(PlanTiming())
    device.run(decodes(0.02))
    device.timing.completed(device.now + 0.02, waited=True, more=False)
    assert device.timing.plan_at(prompts=False) < 0


def test_decodes_after_long_prompts_of_one_size_are_planned_at_once() -> None:
    for sizes in ([16_384] * 3, [16_384, 16_320, 16_384]):
        device = Device(PlanTiming())
        device.run([*((size, 0.315) for size in sizes), *decodes(0.006, count=20)])
        assert device.idle < 0.02, "seconds in which the device waited for a plan"
