"""The real engine on a GPU that is only arithmetic.

Scheduler, pages, ITL controller and planning ahead are real. A formula gives the device and host time
of each step, and the clock jumps from one event to the next.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.lib.engines.step_fit import LinearSteps
from benchmarks.lib.load.client import Record
from benchmarks.lib.load.workload import Work
from engine.config import EngineConfig
from engine.core.plan import ChunkKind, StepPlan
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.device.defaults import GPU_TOKEN_TILE
from engine.engine import Engine
from engine.executor.runner import StepResult
from engine.presets import PRESETS, Preset
from router.placement import StepWork

__all__ = ["CHUNK_BUDGET", "COSTLY_CONTEXT", "Costs", "simulate", "simulated_config"]

_PADDING: Final = 32
"""Tokens to whose multiple a step is padded."""
COSTLY_CONTEXT: Final = 20_000.0
CHUNK_BUDGET: Final = 16_384
_POOL_TOKENS: Final = 960_000
_GRAPH_S: Final = 1e-4
"""To launch one graph of a chain."""
_TOKEN: Final = 5
_VOCABULARY: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds; by default those of Llama-3.1-8B on an H200, fitted to measured steps."""

    weights: float = 4.2e-3
    """To read all weights once: the least that the matrices of a step take."""
    row: float = 19e-6
    """Of matrices, for each token where they are more than that."""
    context: float = 34e-9
    """To read the KV of one token of a decode's context."""
    pair: float = 1.05e-9
    """Of attention, for a prompt token and one that it attends to."""
    step: float = 0.9e-3
    """Of everything else on the device."""
    prompts: float = 1.1e-3
    """What a step with prompts in it adds to that."""
    host: float = 1.3e-3
    """Of the host, until the device can begin."""
    host_prompts: float = 1.1e-3
    """What prompts add to that."""
    host_request: float = 4e-6
    """What each request adds to that."""
    launch: float = 0.6e-3
    """Of the host, once the device can begin: a graph."""
    launch_prompts: float = 3.2e-3
    """The same for a chain of graphs."""
    lead: float = 0.25
    """Part of a launch after which the host may turn to something else."""
    front: float = 7e-3
    """Client, HTTP, router, gRPC and the worker's inbox, there and back, at 30 requests a second."""
    fitted: LinearSteps | None = None
    """Of the device, in place of the above."""

    @classmethod
    def of_steps(cls, fitted: LinearSteps) -> Costs:
        """Only the time of steps, in which that of the host is contained."""
        free = dict.fromkeys(
            ("host", "host_prompts", "host_request", "launch", "launch_prompts", "front"), 0.0
        )
        return cls(**free, fitted=fitted)

    def step_s(self, plan: StepPlan) -> float:
        """Of the device."""
        if self.fitted is not None:
            return self.fitted.seconds(plan)
        contexts = sum(chunk.end for chunk in plan.chunks if chunk.kind is not ChunkKind.PREFILL)
        prompts = [chunk for chunk in plan.chunks if chunk.kind is ChunkKind.PREFILL]
        pairs = sum(StepWork.attention_of(chunk.start, chunk.length) for chunk in prompts)
        rows = -(-plan.num_tokens // _PADDING) * _PADDING
        seconds = max(self.weights, self.row * rows) + self.step
        seconds += self.context * contexts + self.pair * pairs
        return seconds + (self.prompts if plan.prompt_tokens else 0.0)


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.noise = random.Random(1)


@dataclass(slots=True)
class _Step:
    clock: _Clock
    ends: float
    launch: float
    """What of it is still to be launched, in the host's seconds."""
    answer: StepResult

    def proceed(self) -> bool:
        if not self.launch:
            return False
        now = min(self.launch, _GRAPH_S)
        self.launch -= now
        self.clock.now += now
        return True

    def proceed_early(self) -> bool:
        return self.proceed()

    def done(self) -> bool:
        return not self.launch and self.ends <= self.clock.now

    def result(self) -> StepResult:
        while self.proceed():
            pass
        self.clock.now = max(self.clock.now, self.ends)
        return self.answer


class _Spec:
    vocab_size = _VOCABULARY
    eos_token_ids = ()


class _Device:
    """Implements the runner interface of an engine."""

    spec = _Spec()

    def __init__(self, clock: _Clock, costs: Costs) -> None:
        self._clock, self._costs = clock, costs
        self._free = 0.0
        """When it has done all that was launched."""

    def prepare(self, plan: StepPlan) -> StepPlan:
        costs, clock = self._costs, self._clock
        seconds = costs.host + costs.host_request * len(plan.chunks)
        seconds += costs.host_prompts if plan.prompt_tokens else 0.0
        clock.now += seconds * clock.noise.uniform(0.9, 1.4)
        return plan

    def launch(self, plan: StepPlan) -> _Step:
        clock = self._clock
        seconds = self._costs.step_s(plan) * clock.noise.uniform(0.985, 1.03)
        self._free = max(self._free, clock.now) + seconds
        launch = self._costs.launch_prompts if plan.prompt_tokens else self._costs.launch
        lead = self._costs.lead * launch
        clock.now += lead
        sampled = sum(chunk.samples for chunk in plan.chunks)
        answer = StepResult([_TOKEN] * sampled, [None] * sampled)
        return _Step(clock, self._free, launch - lead, answer)

    def close(self) -> None:
        pass


def simulate(
    load: Sequence[Work],
    itl_target_s: float | None,
    costs: Costs,
    *,
    preset: Preset = Preset.BATON,
    chunk_budget: int = CHUNK_BUDGET,
    late: bool = True,
    config: EngineConfig | None = None,
) -> list[Record]:
    """One record a request, as a client would have it. `late`: plan when `engine.sched.step_timing` says.
    `config`: in place of the preset with its budget and target.
    """
    clock = _Clock()
    device: Any = _Device(clock, costs)
    config = config or simulated_config(preset, chunk_budget, itl_target_s)
    engine = Engine(config, runner=device, clock=lambda: clock.now)
    records = [Record(sent=work.arrival_s - costs.front, prompt_tokens=len(work.prompt)) for work in load]
    coming = 0
    while coming < len(load) or engine.has_work:
        while coming < len(load) and load[coming].arrival_s <= clock.now:
            engine.submit(_request(coming, load[coming]))
            coming += 1
        due = (engine.plan_at() if late else 0.0) if engine.has_work else math.inf
        if clock.now < due:
            clock.now = min(due, load[coming].arrival_s) if coming < len(load) else due
            continue
        for token in engine.step().tokens:
            record = records[token.request.id]
            record.arrivals.append(clock.now)
            record.output_tokens += 1
            record.ended = clock.now
        engine.proceed()
    return records


def simulated_config(
    preset: Preset = Preset.BATON, chunk_budget: int = CHUNK_BUDGET, itl_target_s: float | None = None
) -> EngineConfig:
    settings = PRESETS[preset]
    scheduler = settings.scheduler
    if scheduler.chunk_budget is not None:
        scheduler = replace(scheduler, chunk_budget=chunk_budget)
    return EngineConfig(
        model_path=Path("none"),
        page_size=settings.page_size,
        num_pages=_POOL_TOKENS // settings.page_size,
        max_model_len=40_960,
        scheduler=replace(
            scheduler,
            itl_target_s=itl_target_s,
            token_tile=GPU_TOKEN_TILE,
            costly_context=COSTLY_CONTEXT,
        ),
        radix_cache=False,
        overlap=True,
    )


def _request(number: int, work: Work) -> Request:
    sampling = SamplingParams(max_tokens=work.max_tokens, ignore_eos=True)
    assert not isinstance(work.prompt, str)
    return Request(id=number, prompt=list(work.prompt), sampling=sampling)
