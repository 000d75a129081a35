"""Scheduling policies: order of admission, order of preemption, and which request may preempt another."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from engine.config import Policy, SchedulerConfig, Victim
from engine.core.request import Request

VictimKey: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PolicyRules:
    admission_key: Callable[[Request], float]
    """The lowest is admitted first, ties in order of arrival. Constant while the request waits."""
    victim_key: Callable[[Request], VictimKey]
    """The highest is preempted first; of equals, the last admitted."""
    may_preempt: Callable[[Request, Request], bool]
    """Whether a waiting request (first) may take the place of a running one (second)."""
    interleaves: bool = False
    """Whether prompts in progress and waiting prompts share one order, by admission key, instead of prompts
    in progress going first."""


def rules_for(config: SchedulerConfig, seed: int) -> PolicyRules:
    """The rules of a policy.

    LPM and DFS-weight admit in order of arrival; `PrefixRanker` reorders the front of the queue.
    """
    by_output = _least_output if config.victim is Victim.LEAST_OUTPUT else _last_admitted
    match config.policy:
        case Policy.SHORTEST:
            return PolicyRules(attrgetter("schedule_key"), by_output, _never, interleaves=True)
        case Policy.DEADLINE:
            return PolicyRules(attrgetter("deadline"), by_output, _never, interleaves=True)
        case Policy.PRIORITY:
            return _priority_rules(config, by_output)
        case Policy.LOF:
            return PolicyRules(lambda request: -request.sampling.max_tokens, by_output, _never)
        case Policy.RANDOM:
            rng = random.Random(seed)
            return PolicyRules(lambda _: rng.random(), by_output, _never)
        case Policy.FCFS | Policy.LPM | Policy.DFS_WEIGHT:
            return PolicyRules(lambda _: 0.0, by_output, _never)


def _priority_rules(config: SchedulerConfig, by_output: Callable[[Request], VictimKey]) -> PolicyRules:
    sign = 1 if config.low_priority_values_first else -1
    threshold = config.priority_preemption_threshold

    def rank(request: Request) -> int:
        return sign * request.priority

    def may_preempt(waiting: Request, running: Request) -> bool:
        return threshold is not None and rank(running) - rank(waiting) > threshold

    return PolicyRules(rank, lambda request: (rank(request), *by_output(request)), may_preempt)


def _never(waiting: Request, running: Request) -> bool:
    return False


def _last_admitted(request: Request) -> VictimKey:
    return ()


def _least_output(request: Request) -> VictimKey:
    return (-len(request.output), len(request.prompt))
