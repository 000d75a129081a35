"""Host time per step, before and after the device computes. Needs no model and no GPU.

    python -m benchmarks.micro.host_cost --running 256 --context 1024

Plans steps in which every request decodes, builds their batches, and processes synthetic tokens. Planning of
attention and kernel launches are not included; `benchmarks.gpu.decode` measures those.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.report import Percentiles, figures_table
from engine.batch.batch import BatchBuilder
from engine.batch.step_inputs import StepWriter
from engine.config import SchedulerConfig
from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.kv_manager.kv_manager import KVManager
from engine.sched.scheduler import Scheduler

_PAGE_SIZE: Final = 16
_BUDGET: Final = 16384
_TOKEN: Final = 5


@dataclass(slots=True)
class HostCost:
    """Milliseconds of each step, by what was done."""

    plan: list[float] = field(default_factory=list)
    write: list[float] = field(default_factory=list)
    build: list[float] = field(default_factory=list)
    complete: list[float] = field(default_factory=list)

    @property
    def total(self) -> list[float]:
        return [sum(parts) for parts in zip(self.plan, self.write, self.build, self.complete, strict=True)]


def measure(running: int, context: int, steps: int) -> HostCost:
    """`steps` steps in which `running` requests decode; their prompts had `context` tokens."""
    scheduler, writer, builder = _engine(running, context + steps + 1)
    for i in range(running):
        sampling = SamplingParams(max_tokens=steps + 1, ignore_eos=True)
        scheduler.submit(Request(id=i, prompt=[i] * context, sampling=sampling))
    warm_up = HostCost()
    while len(_step(scheduler, writer, builder, warm_up).chunks) < running or any(
        request.num_pending > 1 for request in scheduler.running
    ):
        pass
    cost = HostCost()
    for _ in range(steps - len(warm_up.plan)):
        _step(scheduler, writer, builder, cost)
    return cost


def _engine(running: int, longest: int) -> tuple[Scheduler, StepWriter, BatchBuilder]:
    num_pages = (running + 1) * -(-longest // _PAGE_SIZE)
    config = SchedulerConfig(chunk_budget=_BUDGET, max_running_requests=running)
    builder = BatchBuilder(
        page_size=_PAGE_SIZE,
        max_requests=running,
        max_model_len=longest + 1,
        scratch_page=num_pages,
        device=torch.device("cpu"),
    )
    scheduler = Scheduler(config, KVManager(num_pages, _PAGE_SIZE), context=longest + 1)
    return scheduler, StepWriter(running), builder


def _step(scheduler: Scheduler, writer: StepWriter, builder: BatchBuilder, cost: HostCost) -> StepPlan:
    with _timed(cost.plan):
        plan = scheduler.plan()
    with _timed(cost.write):
        inputs = writer.write(plan)
    with _timed(cost.build):
        builder.build(inputs)
    with _timed(cost.complete):
        for chunk in plan.chunks:
            scheduler.complete(chunk)
            if chunk.output_index is not None:
                chunk.request.output[chunk.output_index] = _TOKEN
    return plan


@contextmanager
def _timed(milliseconds: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    milliseconds.append(1e3 * (time.perf_counter() - began))


def main() -> None:
    options = _parser().parse_args()
    cost = measure(options.running, options.context, options.steps)
    title = f"Host, {options.running} decodes of {options.context} tokens, on {describe_machine()}"
    Console().print(_table(cost, title))


def _table(cost: HostCost, title: str) -> Table:
    table = figures_table(title, "", "p50, ms", "p99, ms")
    parts: Sequence[tuple[str, list[float]]] = (
        ("plan the step", cost.plan),
        ("write its inputs", cost.write),
        ("build the batch", cost.build),
        ("take the tokens in", cost.complete),
        ("together", cost.total),
    )
    for name, values in parts:
        spread = Percentiles.of(values)
        table.add_row(name, f"{spread.p50:.2f}", f"{spread.p99:.2f}")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = command("micro.host_cost", __doc__)
    parser.add_argument("--running", type=int, default=256, metavar="N", help="requests that decode")
    parser.add_argument("--context", type=int, default=1024, metavar="TOKENS", help="length of their prompts")
    parser.add_argument("--steps", type=int, default=500, metavar="N")
    return parser


if __name__ == "__main__":
    main()
