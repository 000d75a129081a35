"""The engines of `benchmarks.chunked`: on a CPU, on a GPU, or simulated, under any setting."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol
from unittest.mock import patch

import torch

from benchmarks.lib.engines.simulated_gpu import FRONT_S, simulated_config
from benchmarks.lib.load.client import Record
from benchmarks.lib.load.workload import Work
from benchmarks.lib.memory.peak_memory import CpuPeak, CudaPeak
from common.garbage_collection import tune_gc
from engine.config import Batching, EngineConfig, Policy, SchedulerConfig
from engine.core.events import StepMeasured
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.device.defaults import GPU_TOKEN_TILE
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from engine.presets import PRESETS, Preset
from simulator.device import ENGINE_H200_8B, StepCosts
from simulator.runner import Clock as SimulatedClock
from simulator.runner import FormulaRunner

_MOST_RUNNING: Final = 64
_GRAPH_TOKENS: Final = 2048


@dataclass(frozen=True, slots=True)
class Setting:
    chunk: int
    """-1: whole prompts."""
    batching: Batching

    @property
    def size(self) -> str:
        return "whole" if self.chunk == -1 else str(self.chunk)

    def __str__(self) -> str:
        return self.size if self.batching is Batching.MIXED else f"{self.size}, {self.batching.value}"


def scheduler_of(setting: Setting, base: SchedulerConfig) -> SchedulerConfig:
    """Without an ITL target, which would choose the chunks itself."""
    chunk = None if setting.chunk == -1 else setting.chunk
    return replace(
        base,
        chunk_budget=chunk,
        chunked_prefill=chunk is not None,
        batching=setting.batching,
        itl_target_s=None,
    )


def cpu_config(model: Path, context: int) -> EngineConfig:
    """float32; the pool holds 16 requests of that context."""
    return EngineConfig(
        model_path=model,
        page_size=16,
        num_pages=context,
        max_model_len=context,
        scheduler=SchedulerConfig(
            chunk_budget=None, chunked_prefill=False, max_running_requests=_MOST_RUNNING, itl_target_s=None
        ),
        radix_cache=False,
    )


def cuda_config(model: Path, context: int) -> EngineConfig:
    """bfloat16, with random weights; the pool takes what is left of the GPU."""
    return EngineConfig(
        model_path=model,
        device="cuda",
        dtype="bfloat16",
        load_format="dummy",
        page_size=16,
        num_pages=0,
        max_model_len=context,
        scheduler=SchedulerConfig(
            chunk_budget=None,
            chunked_prefill=False,
            max_running_requests=2 * _MOST_RUNNING,
            itl_target_s=None,
            token_tile=GPU_TOKEN_TILE,
        ),
        cuda_graph_max_batch=2 * _MOST_RUNNING,
        cuda_graph_max_tokens=_GRAPH_TOKENS,
        radix_cache=False,
        overlap=True,
    )


def with_preset(config: EngineConfig, preset: Preset, policy: Policy | None) -> EngineConfig:
    """`config` with the scheduler and the page size of another system."""
    settings = PRESETS[preset]
    return replace(
        config,
        page_size=settings.page_size,
        num_pages=config.num_pages * config.page_size // settings.page_size,
        scheduler=replace(
            settings.scheduler,
            policy=policy or settings.scheduler.policy,
            max_running_requests=config.scheduler.max_running_requests,
            token_tile=config.scheduler.token_tile,
            costly_context=config.scheduler.costly_context,
        ),
    )


@dataclass(frozen=True, slots=True)
class Alone:
    """One prompt with nothing beside it."""

    peak_bytes: int
    """Beyond weights, KV pool and all else that was there before."""
    ttft_s: float


class Clock(Protocol):
    def now(self) -> float: ...

    def wait_until(self, at: float) -> None: ...


class WallClock:
    def now(self) -> float:
        return time.monotonic()

    def wait_until(self, at: float) -> None:
        time.sleep(max(at - time.monotonic(), 0.0))


class CpuClock:
    """CPU time of this process, which computes with one thread; waiting takes no time."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._skipped = 0.0

    def now(self) -> float:
        return time.process_time() + self._skipped

    def wait_until(self, at: float) -> None:
        self._skipped += max(at - self.now(), 0.0)


class MeasuredEngine(Protocol):
    def run(self, setting: Setting, load: Sequence[Work]) -> list[Record]:
        """One record a request."""

    def alone(self, setting: Setting, prompt: Sequence[int]) -> Alone | None:
        """Computes this prompt to its first token; None: memory is not simulated."""


class RealEngine:
    """One model for all settings; each run has its own engine and cache."""

    def __init__(self, config: EngineConfig) -> None:
        self._clock: Final[Clock] = CpuClock() if config.device == "cpu" else WallClock()
        self.steps: list[StepMeasured] = []
        """A sample of the steps so far."""
        self.config: Final = config
        self._runner: Final = ModelRunner(config)
        tune_gc()
        if config.device == "cpu":
            self._runner.kv.tensor.zero_()  # else its pages become resident one by one

    def run(self, setting: Setting, load: Sequence[Work]) -> list[Record]:
        steps = None if self.config.overlap else self.steps
        return drive(self._engine(setting), load, self._clock, steps)

    def alone(self, setting: Setting, prompt: Sequence[int]) -> Alone | None:
        """Without CUDA graphs, whose memory is allocated once for all steps."""
        eager = self._runner._forwards[-1:]
        load = [Work(arrival_s=0.0, prompt=list(prompt), max_tokens=1)]
        peak = CpuPeak() if self.config.device == "cpu" else CudaPeak()
        with patch.object(self._runner, "_forwards", eager), peak:
            [record] = drive(self._engine(setting), load, self._clock)
        return Alone(peak.bytes, record.ttft)

    def _engine(self, setting: Setting) -> Engine:
        scheduler = scheduler_of(setting, self.config.scheduler)
        return Engine(replace(self.config, scheduler=scheduler), runner=self._runner, clock=self._clock.now)


def drive(
    engine: Engine,
    load: Sequence[Work],
    clock: Clock,
    steps: list[StepMeasured] | None = None,
    *,
    early: bool = False,
) -> list[Record]:
    """Send the load to an engine at its times of arrival, by the engine's clock; one record a request.

    `steps` gets a sample of the steps, with the time that `Engine.step` took for them; not with overlap.
    `early`: plan each step as soon as possible.
    """
    began = clock.now()
    records = [Record(sent=began + work.arrival_s, prompt_tokens=len(work.prompt)) for work in load]
    coming = 0
    while coming < len(load) or engine.has_work:
        while coming < len(load) and records[coming].sent <= clock.now():
            sampling = SamplingParams(max_tokens=load[coming].max_tokens, ignore_eos=True)
            engine.submit(Request(coming, load[coming].prompt, sampling))  # type: ignore[arg-type]
            coming += 1
        now = clock.now()
        due = (-math.inf if early else engine.plan_at()) if engine.has_work else math.inf
        if due > now:
            if coming < len(load):
                due = min(due, records[coming].sent)
            clock.wait_until(due)
            continue
        at = clock.now()
        output = engine.step()
        now = clock.now()
        if steps is not None and output.measured is not None:
            steps.append(replace(output.measured, seconds=now - at))
        for token in output.tokens:
            record = records[token.request.id]
            record.arrivals.append(now)
            record.output_tokens += 1
            record.ended = now
        engine.proceed()
    return records


def simulate(
    load: Sequence[Work],
    config: EngineConfig,
    costs: StepCosts = ENGINE_H200_8B,
    front_s: float = FRONT_S,
    *,
    early: bool = False,
) -> list[Record]:
    """`drive` on a simulated device; a client's request takes `front_s` more, there and back."""
    clock = SimulatedClock()
    engine = Engine(config, runner=FormulaRunner(costs, clock), clock=clock.now)
    records = drive(engine, load, clock, early=early)
    return [replace(record, sent=record.sent - front_s) for record in records]


class SimulatedEngine:
    """A simulated H200, or the device whose costs are given."""

    def __init__(
        self,
        costs: StepCosts = ENGINE_H200_8B,
        config: EngineConfig | None = None,
        front_s: float = FRONT_S,
    ) -> None:
        self._costs = costs
        self._front_s = front_s
        self._config = simulated_config() if config is None else config

    def run(self, setting: Setting, load: Sequence[Work]) -> list[Record]:
        config = replace(self._config, scheduler=scheduler_of(setting, self._config.scheduler))
        return simulate(load, config, self._costs, self._front_s)

    def alone(self, setting: Setting, prompt: Sequence[int]) -> Alone | None:
        return None
