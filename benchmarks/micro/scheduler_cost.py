"""Cost of planning a step with many requests, for every policy. Needs no model and no GPU.

    python -m benchmarks.micro.scheduler_cost --running 512 --waiting 2000

Two states of a loaded worker: "full", in which every slot is taken and nothing can be admitted, and
"admitting", in which in every step a request ends, another takes its place and its prompt is computed, so
that the prefix cache changes. Prompts have 2,048 tokens, of which `--cached` are in the prefix cache. Times
are CPU times of the thread. Other processes still add to them through the caches that they share, so the same
load is planned `--repeats` times, and the least time of each step counts.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from itertools import count
from typing import Final

from rich.console import Console

from benchmarks.lib.command import command
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.report import Percentiles, figures_table
from common.garbage_collection import tune_gc
from engine.config import Policy, SchedulerConfig
from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.core.sampling_params import FinishReason, SamplingParams
from engine.kv.manager.kv_manager import KVManager
from engine.sched.scheduler import Scheduler

_PAGE_SIZE: Final = 16
_PROMPT: Final = 2048
_BUDGET: Final = 2048
_TOKEN: Final = 5
_WARM_UP: Final = 20
_GROUPS: Final = 16
"""Prefixes that prompts share."""
_STEP_S: Final = 0.012
"""Time of a simulated step without prompts."""
_PROMPT_STEP_S: Final = 0.05


class _Load:
    def __init__(self, policy: Policy, running: int, waiting: int, cached: int) -> None:
        config = SchedulerConfig(
            policy=policy,
            chunk_budget=_BUDGET + running,
            max_running_requests=running,
            max_waiting_requests=waiting + running + 1,
        )
        kv = KVManager((running + _GROUPS) * (2 * _PROMPT // _PAGE_SIZE), _PAGE_SIZE)
        self.scheduler = Scheduler(config, kv, context=4 * _PROMPT)
        self._cached = cached
        self._now = 0.0
        self._ids = count()
        for group in range(_GROUPS):
            self._submit(max_tokens=1, group=group)
        while self.scheduler.num_waiting or self.scheduler.running:
            self.end(self.step())
        for _ in range(running):
            self._submit(max_tokens=1 << 20)
        while self.scheduler.num_waiting or any(r.num_pending > 1 for r in self.scheduler.running):
            self.step()
        for _ in range(waiting):
            self._submit(max_tokens=1 << 20)

    def replace_one(self) -> None:
        """The oldest running request ends, and a new one comes."""
        self.scheduler.remove(oldest := self.scheduler.running[0], FinishReason.LENGTH)
        self.scheduler.kv.release(oldest)
        self._submit(max_tokens=1 << 20)

    def step(self, milliseconds: list[float] | None = None) -> StepPlan:
        began = time.thread_time()
        plan = self.scheduler.plan(self._now)
        if milliseconds is not None:
            milliseconds.append(1e3 * (time.thread_time() - began))
        for chunk in plan.chunks:
            self.scheduler.complete(chunk)
            if chunk.output_index is not None:
                chunk.request.output[chunk.output_index] = _TOKEN
        seconds = _PROMPT_STEP_S if plan.prompt_tokens else _STEP_S
        self._now += seconds
        self.scheduler.observe(float(plan.prompt_tokens), seconds)
        return plan

    def end(self, plan: StepPlan) -> None:
        for request in [chunk.request for chunk in plan.chunks if chunk.samples]:
            self.scheduler.remove(request, FinishReason.LENGTH)
            self.scheduler.kv.release(request)

    def _submit(self, max_tokens: int, group: int | None = None) -> None:
        id = next(self._ids)
        group = id % _GROUPS if group is None else group
        prompt = [group] * self._cached + [1000 + id] * (_PROMPT - self._cached)
        self.scheduler.submit(Request(id, prompt, SamplingParams(max_tokens=max_tokens), priority=id % 3))


def measure(
    policy: Policy, running: int, waiting: int, cached: int, steps: int, repeats: int = 1
) -> dict[str, list[float]]:
    """Milliseconds of each call of `plan`, by state; the least of `repeats` equal ones."""
    runs = [_measure_once(policy, running, waiting, cached, steps) for _ in range(repeats)]
    return {
        state: [min(same) for same in zip(*(run[state] for run in runs), strict=True)] for state in runs[0]
    }


def _measure_once(
    policy: Policy, running: int, waiting: int, cached: int, steps: int
) -> dict[str, list[float]]:
    gc.unfreeze()
    gc.collect()  # what the run before left
    load = _Load(policy, running, waiting, cached)
    tune_gc()  # as a worker does
    costs: dict[str, list[float]] = {"full": [], "admitting": []}
    for _ in range(_WARM_UP):
        load.step()
    for _ in range(steps):
        load.step(costs["full"])
    for turn in range(_WARM_UP + steps):
        load.replace_one()
        load.step(costs["admitting"] if turn >= _WARM_UP else None)
    return costs


def main() -> None:
    options = _parser().parse_args()
    title = (
        f"Scheduler.plan, {options.running} running and {options.waiting} waiting, {_PROMPT} prompt tokens,"
        f" {options.cached} cached, on {describe_machine()}"
    )
    table = figures_table(title, "policy", "full p50, ms", "p99", "admitting p50, ms", "p99")
    for policy in options.policies:
        table.add_row(policy.value, *_row(measure(policy, *_sizes(options))))
    Console().print(table)


def _sizes(options: argparse.Namespace) -> tuple[int, int, int, int, int]:
    return options.running, options.waiting, options.cached, options.steps, options.repeats


def _row(costs: dict[str, list[float]]) -> Iterator[str]:
    for milliseconds in costs.values():
        spread = Percentiles.of(milliseconds)
        yield from (f"{spread.p50:.2f}", f"{spread.p99:.2f}")


def _policies(text: str) -> list[Policy]:
    return [Policy(name) for name in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = command("micro.scheduler_cost", __doc__)
    every = ",".join(policy.value for policy in Policy)
    parser.add_argument("--policies", type=_policies, default=every, metavar="NAME,…")
    parser.add_argument("--running", type=int, default=512, metavar="N", help="requests that decode")
    parser.add_argument("--waiting", type=int, default=2000, metavar="N", help="requests in the queue")
    parser.add_argument("--cached", type=int, default=1984, metavar="TOKENS", help="of each prompt")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="steps measured in each state")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs, of which the least counts")
    return parser


if __name__ == "__main__":
    main()
