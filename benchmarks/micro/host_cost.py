"""Host time per step, before and after the device computes. Needs no model and no GPU.

    python -m benchmarks.micro.host_cost --running 256 --context 1024

An engine plans steps in which every request decodes, writes and builds their batches, plans their attention,
and takes in synthetic tokens. CUDA calls are not included; `benchmarks.gpu.decode` measures those. Times are
CPU times of the thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.report import Percentiles, figures_table
from common.garbage_collection import tune_gc
from common.kv_groups import ONE_GROUP, KVGroup
from engine.config import EngineConfig, SchedulerConfig
from engine.core.batch.batch import BatchBuilder, padded_rows
from engine.core.batch.decode_plan import Decodes, PlanLayout
from engine.core.batch.step_inputs import StepWriter
from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.executor.base import StepResult
from engine.loop.engine import Engine
from engine.mixers.attention.decode_planner import DecodePlanner

_PAGE_SIZE: Final = 16
_BUDGET: Final = 16384
_TOKEN: Final = 5
_VOCAB: Final = 128_256
_SETTLING: Final = 20
_MULTIPROCESSORS: Final = 132
_KV_HEADS: Final = 8


@dataclass(slots=True)
class HostCost:
    """Milliseconds of each step, by what was done."""

    plan: list[float] = field(default_factory=list)
    write: list[float] = field(default_factory=list)
    build: list[float] = field(default_factory=list)
    attention: list[float] = field(default_factory=list)
    complete: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Model:
    kv_groups: tuple[KVGroup, ...] = ONE_GROUP
    vocab_size: int = _VOCAB
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Done:
    """A step whose tokens are known at once. Implements `StepInFlight`."""

    answer: StepResult

    def proceed(self) -> bool:
        return False

    def proceed_early(self) -> bool:
        return False

    def done(self) -> bool:
        return True

    def wait(self) -> None: ...

    def result(self) -> StepResult:
        return self.answer


class _HostRunner:
    """Does what a `ModelRunner` does on the host; every token that it samples is the same."""

    num_pages = num_state_slots = 0
    spec = _Model()

    def __init__(self, running: int, longest: int, num_pages: int) -> None:
        self.cost = HostCost()
        self._scratch = num_pages
        self._writer = StepWriter(running)
        self._builder = BatchBuilder(
            page_size=_PAGE_SIZE,
            max_requests=running,
            max_model_len=longest,
            scratch_page=num_pages,
            device=torch.device("cpu"),
        )
        self._planner = DecodePlanner(
            multiprocessors=_MULTIPROCESSORS, num_kv_heads=_KV_HEADS, page_size=_PAGE_SIZE
        )
        self._layout = PlanLayout(running, self._planner.most_parts(running))
        self._rows = torch.zeros((3, padded_rows(running)), dtype=torch.int64)

    def prepare(self, plan: StepPlan) -> StepPlan:
        with _timed(self.cost.write):
            inputs = self._writer.write(plan, by_rows=True)
        with _timed(self.cost.build):
            fits = len(inputs.input_ids) <= self._rows.shape[1]
            batch = self._builder.build(inputs, self._rows if fits else None)
        with _timed(self.cost.attention):
            if not batch.num_chunks:
                group, missing = batch.groups[0], self._layout.requests - batch.num_requests
                decodes = Decodes(group.context_lens, group.block_tables).padded(missing, self._scratch)
                attention = self._planner.plan(decodes)
                self._layout.pack(attention, np.empty(self._layout.ints(attention), dtype=np.int32))
        return plan

    def launch(self, plan: StepPlan) -> _Done:
        sampled = sum(chunk.samples for chunk in plan.chunks)
        return _Done(StepResult([_TOKEN] * sampled, [None] * sampled))

    def pages_of_slot(self, slot: int) -> Sequence[int]:
        return ()

    def close(self) -> None: ...


def measure(running: int, context: int, steps: int) -> HostCost:
    """`steps` steps in which `running` requests decode; their prompts had `context` tokens."""
    output = steps + _SETTLING + 1
    longest = context + output + 1
    num_pages = (running + 1) * -(-longest // _PAGE_SIZE)
    runner: Any = _HostRunner(running, longest, num_pages)
    engine = Engine(
        EngineConfig(
            model_path=Path("none"),
            page_size=_PAGE_SIZE,
            num_pages=num_pages,
            max_model_len=longest,
            scheduler=SchedulerConfig(chunk_budget=_BUDGET, max_running_requests=running),
        ),
        runner=runner,
    )
    for i in range(running):
        sampling = SamplingParams(max_tokens=output, ignore_eos=True)
        engine.submit(Request(id=i, prompt=[i] * context, sampling=sampling))
    while len(engine.scheduler.running) < running or any(r.num_pending > 1 for r in engine.scheduler.running):
        engine.step()
    for _ in range(_SETTLING):
        engine.step()
    runner.cost = cost = HostCost()
    with _spent_in(engine.scheduler, "plan", cost.plan), _spent_in(engine, "_finish", cost.complete):
        for _ in range(steps):
            with _timed(cost.total):
                engine.step()
    return cost


@contextmanager
def _spent_in(owner: object, name: str, milliseconds: list[float]) -> Iterator[None]:
    """Times calls of a method of one object."""
    call = getattr(owner, name)

    def timed(*arguments: Any) -> Any:
        with _timed(milliseconds):
            return call(*arguments)

    setattr(owner, name, timed)
    yield
    delattr(owner, name)


@contextmanager
def _timed(milliseconds: list[float]) -> Iterator[None]:
    began = time.thread_time()
    yield
    milliseconds.append(1e3 * (time.thread_time() - began))


def main() -> None:
    options = _parser().parse_args()
    tune_gc()
    title = f"Host, {options.running} requests of {options.context} tokens, on {describe_machine()}"
    cost = measure(options.running, options.context, options.steps)
    Console().print(_table(cost, title))


def _table(cost: HostCost, title: str) -> Table:
    table = figures_table(title, "", "p50, ms", "p99, ms")
    parts = {
        "plan the step": "plan",
        "write its inputs": "write",
        "build the batch": "build",
        "plan its attention": "attention",
        "take the tokens in": "complete",
        "the whole step": "total",
    }
    for label, name in parts.items():
        spread = Percentiles.of(getattr(cost, name))
        table.add_row(label, f"{spread.p50:.3f}", f"{spread.p99:.3f}")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = command("micro.host_cost", __doc__)
    parser.add_argument("--running", type=int, default=256, metavar="N", help="requests that decode")
    parser.add_argument("--context", type=int, default=1024, metavar="TOKENS", help="length of their prompts")
    parser.add_argument("--steps", type=int, default=500, metavar="N")
    return parser


if __name__ == "__main__":
    main()
