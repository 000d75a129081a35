"""Times of steps, for everything that is decided by them: chunk sizes, drafts, and when to plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from engine.config import SchedulerConfig
from engine.core.plan import StepPlan
from engine.loop.pauses.expected_time import ExpectedTime
from engine.sched.chunk_size.itl_controller import PromptCost
from engine.sched.scheduler import Scheduler
from engine.sched.timing.plan_timing import PlanTiming
from engine.sched.timing.prefill_rate import PrefillRate

_MEASURE_S: Final = 0.05
"""Interval between two steps measured for `StepOutput.measured`, which costs O(chunks)."""


class StepClock:
    def __init__(self, config: SchedulerConfig, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._timing = PlanTiming()
        self._prefill_rate = PrefillRate()
        self._cost = PromptCost(config.costly_context)
        self._expected = ExpectedTime()
        self.expected_s = 0.0
        """Seconds that the latest completed step was expected to take; 0: unknown."""
        self._completed_at = -math.inf
        self._measure_at = self._ended_at = -math.inf

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second."""
        return self._prefill_rate.tokens_a_second

    def rest(self) -> None:
        """The device was idle: the next step does not wait for the one before."""
        self._completed_at = -math.inf

    def prepared(self, plan: StepPlan, began: float, *, dry: bool) -> None:
        """A step was planned and prepared since `began`; `dry`: the step in flight had ended by then."""
        now = self._clock()
        self._timing.prepared(self._cost.of_step(plan), now - began, now, dry=dry)

    def ended(self, launched_at: float, *, waited: bool, more: bool) -> float | None:
        """A step has ended; `waited`: now, not earlier; `more`: the next one has begun.

        Returns the seconds that it took, if they are to be reported: no step was measured just before.
        """
        now = self._clock()
        self._timing.completed(now, waited=waited, more=more)
        since, self._ended_at = max(launched_at, self._ended_at), now
        if not waited or now < self._measure_at:
            return None
        self._measure_at = now + _MEASURE_S
        return now - since

    def completed(self, plan: StepPlan) -> float:
        """Report the time since the previous step to those that size prompts; returns it."""
        now = self._clock()
        since, self._completed_at = self._completed_at, now
        if since > -math.inf and plan.leaves_prompts:
            self._prefill_rate.observe(plan.prompt_tokens, now - since)
        decodes, cost = len(plan.chunks) - plan.num_prompts, self._cost.of_step(plan)
        self.expected_s = self._expected.of(cost, decodes)
        if since > -math.inf and not plan.has_images:  # their encoding says nothing about tokens
            self._expected.observe(cost, decodes, now - since)
            if decodes:
                self._scheduler.observe(cost, now - since)
        return now - since

    def plan_at(self) -> float:
        """When to plan the next step while one is in flight."""
        return self._timing.plan_at(self._scheduler.has_prompts)
