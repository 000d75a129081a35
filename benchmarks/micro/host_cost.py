"""Host time per step, before and after the device computes. Needs no model and no GPU.

    python -m benchmarks.micro.host_cost --running 256 --context 1024
    python -m benchmarks.micro.host_cost --running 1 --drafts 4 --acceptance 0.7

An engine plans steps in which every request decodes, writes and builds their batches, plans their attention,
and takes in synthetic tokens. With `--drafts`, every step verifies this many drafted tokens of each request,
each right with the probability `--acceptance`; steps without drafts are measured beside it. With `--apart`,
the host sleeps before it takes in a step's tokens, as it waits for a GPU: code and data may have left its
caches then. CUDA calls are not included; `benchmarks.gpu.decode` and `benchmarks.gpu.speculation` measure
those. Times are CPU times of the thread.
"""

from __future__ import annotations

import argparse
import random
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
from benchmarks.lib.engines.oracle import Oracle, speculate
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.report import Percentiles, figures_table
from common.garbage_collection import tune_gc
from common.kv_groups import ONE_GROUP, KVGroup
from engine.config import EngineConfig, SchedulerConfig, SpeculationConfig
from engine.core.batch.batch import BatchBuilder, padded_rows
from engine.core.batch.decode_plan import Decodes, PlanLayout
from engine.core.batch.step_inputs import StepWriter
from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.executor.base import StepResult
from engine.loop.engine import Engine
from engine.mixers.attention.decode_planner import DecodePlanner
from engine.speculation.drafters import Drafter

_PAGE_SIZE: Final = 16
_BUDGET: Final = 16384
_TOKEN: Final = 5
_VOCAB: Final = 128_256
_SETTLING: Final = 20
_MULTIPROCESSORS: Final = 132
_KV_HEADS: Final = 8
_READ_AGAIN: Final = 32_768
"""As in `ModelRunner`: longer contexts of verify chunks run through the kernels of prompts."""


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
    """A step whose tokens are known after a while. Implements `StepInFlight`."""

    answer: StepResult
    seconds: float

    def proceed(self) -> bool:
        return False

    def proceed_early(self) -> bool:
        return False

    def done(self) -> bool:
        return True

    def wait(self) -> None: ...

    def result(self) -> StepResult:
        if self.seconds:
            time.sleep(self.seconds)
        return self.answer


class _HostRunner:
    """Does what a `ModelRunner` does on the host; every token that it samples is the same."""

    num_pages = num_state_slots = 0
    spec = _Model()

    def __init__(self, running: int, longest: int, rows: int, num_pages: int, apart_s: float) -> None:
        self.cost = HostCost()
        self._apart_s = apart_s
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
        self._layout = PlanLayout(rows, self._planner.most_parts(rows))
        self._rows = torch.zeros((3, padded_rows(rows)), dtype=torch.int64)

    def prepare(self, plan: StepPlan) -> StepPlan:
        long = sum(len(chunk.draft) * chunk.end for chunk in plan.chunks) > _READ_AGAIN
        with _timed(self.cost.write):
            inputs = self._writer.write(plan, by_rows=not long)
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
        sampled = sum(1 + len(chunk.draft) for chunk in plan.chunks if chunk.samples)
        return _Done(StepResult([_TOKEN] * sampled, [None] * sampled), self._apart_s)

    def pages_of_slot(self, slot: int) -> Sequence[int]:
        return ()

    def close(self) -> None: ...


def measure(
    running: int,
    context: int,
    steps: int,
    drafts: int = 0,
    acceptance: float = 0.0,
    apart_s: float = 0.0,
) -> HostCost:
    """`steps` steps in which `running` requests decode; their prompts had `context` tokens."""
    output = (steps + _SETTLING) * (1 + drafts) + 1
    longest = context + output + 1
    num_pages = (running + 1) * -(-longest // _PAGE_SIZE)
    runner: Any = _HostRunner(running, longest, running * (1 + drafts), num_pages, apart_s)
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
    if drafts:
        rng, answer = random.Random(1), [_TOKEN] * output

        def drafters_of(request: Request) -> list[Drafter]:
            return [Oracle(answer, _VOCAB, acceptance, rng)]

        speculate(engine, SpeculationConfig(num_draft_tokens=drafts, adaptive=False), drafters_of)
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
    shape = options.running, options.context, options.steps
    apart_s = options.apart / 1e3
    costs = {"decode": measure(*shape, apart_s=apart_s)}
    if options.drafts:
        costs[f"verify {options.drafts}"] = measure(*shape, options.drafts, options.acceptance, apart_s)
    Console().print(_table(costs, title))


def _table(costs: dict[str, HostCost], title: str) -> Table:
    heads = [f"{name}, ms: {spread}" for name in costs for spread in ("p50", "p99")]
    table = figures_table(title, "", *heads)
    parts = {
        "plan the step": "plan",
        "write its inputs": "write",
        "build the batch": "build",
        "plan its attention": "attention",
        "take the tokens in": "complete",
        "the whole step": "total",
    }
    for label, name in parts.items():
        spreads = [Percentiles.of(getattr(cost, name)) for cost in costs.values()]
        table.add_row(label, *(f"{value:.3f}" for spread in spreads for value in (spread.p50, spread.p99)))
    return table


def _parser() -> argparse.ArgumentParser:
    parser = command("micro.host_cost", __doc__)
    parser.add_argument("--running", type=int, default=256, metavar="N", help="requests that decode")
    parser.add_argument("--context", type=int, default=1024, metavar="TOKENS", help="length of their prompts")
    parser.add_argument("--steps", type=int, default=500, metavar="N")
    parser.add_argument("--drafts", type=int, default=0, metavar="N", help="drafted tokens per request")
    parser.add_argument("--acceptance", type=float, default=0.7, metavar="P")
    parser.add_argument("--apart", type=float, default=0.0, metavar="MS", help="pause in each step")
    return parser


if __name__ == "__main__":
    main()
