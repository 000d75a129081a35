"""Sends a load to an engine on a simulated device, by its clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.lib.engines.simulated_gpu import FRONT_S
from benchmarks.lib.load.client import Record
from benchmarks.lib.load.workload import Work
from engine.config import EngineConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from simulator.device import ENGINE_H200_8B, StepCosts
from simulator.runner import Clock, FormulaRunner


def simulate(load: Sequence[Work], config: EngineConfig, costs: StepCosts = ENGINE_H200_8B) -> list[Record]:
    """Returns one record a request; a client's request takes `FRONT_S` more, there and back."""
    clock = Clock()
    engine = Engine(config, runner=FormulaRunner(costs, clock), clock=clock.now)
    records = _drive(engine, load, clock)
    return [replace(record, sent=record.sent - FRONT_S) for record in records]


def _drive(engine: Engine, load: Sequence[Work], clock: Clock) -> list[Record]:
    began = clock.now()
    records = [Record(sent=began + work.arrival_s, prompt_tokens=len(work.prompt)) for work in load]
    coming = 0
    while coming < len(load) or engine.has_work:
        while coming < len(load) and records[coming].sent <= clock.now():
            sampling = SamplingParams(max_tokens=load[coming].max_tokens, ignore_eos=True)
            engine.submit(Request(coming, load[coming].prompt, sampling))  # type: ignore[arg-type]
            coming += 1
        due = engine.plan_at() if engine.has_work else math.inf
        if due > clock.now():
            clock.wait_until(min(due, records[coming].sent) if coming < len(load) else due)
            continue
        output = engine.step()
        now = clock.now()
        for token in output.tokens:
            record = records[token.request.id]
            record.arrivals.append(now)
            record.output_tokens += 1
            record.ended = now
        engine.proceed()
    return records
