"""Targets for step times: every combination starts on every worker, or is refused by the name of its flag."""

from __future__ import annotations

from itertools import product
from typing import Any, cast

import pytest

from engine.config import Batching
from engine.executor.runner import ModelRunner
from engine.loop.warmup import WarmupPlan, warm_up
from engine.modeling.loader.checkpoint import Checkpoint
from engine.sched.presets import Preset
from router.cluster.worker_config.machine import Machine
from router.cluster.worker_config.worker_plan import plan_workers
from router.config.choices import Mode
from router.config.flags.command_line import parse
from router.config.flags.values import ConfigError
from tests.unit.engine.fake_runner import FakeRunner
from tests.unit.router.cluster.worker_config.models import CPU, gpu
from worker.config import WorkerConfig

TARGETS = [
    "".join(flags)
    for flags in product(
        ("", " --ttft-target-ms=500"),
        ("", " --itl-target-ms=0", " --itl-target-ms=15"),
        ("", " --pause-target-ms=10", " --pause-target-ms=60"),
    )
]
CHUNKS = [
    "",
    *(f" --batching={batching.value}" for batching in Batching if batching is not Batching.MIXED),
    *(f" --preset={preset.value}" for preset in Preset if preset is not Preset.BATON),
    " --disable-chunked-prefill --chunked-prefill-size=8192",
    " --chunked-prefill-size=-1",
    " --prefill-chunked-prefill-size=-1",
    " --decode-chunked-prefill-size=-1",
]


def warm_up_as_a_worker_does(worker: WorkerConfig, machine: Machine) -> None:
    engine = worker.engine
    if machine.device == "cuda":
        engine = worker.sizes.on(engine, machine.memory_bytes)
    runner: Any = FakeRunner(engine.page_size, 64)
    warm_up(cast(ModelRunner, runner), engine, WarmupPlan(crowd=2))
    assert runner.steps


def problems(flags: list[str]) -> tuple[str, ...]:
    """Why the router does not start with these flags."""
    try:
        parse(["--model=m", *flags])
    except ConfigError as refusal:
        return refusal.problems
    return ()


@pytest.mark.parametrize("machine", [CPU, gpu(141)], ids=["cpu", "gpu"])
@pytest.mark.parametrize("mode", list(Mode))
def test_all_targets_start_on_all_workers_or_are_refused_by_flag(
    checkpoint: Checkpoint, mode: Mode, machine: Machine
) -> None:
    started = 0
    for targets, chunks in product(TARGETS, CHUNKS):
        flags = [f"--mode={mode.value}", *f"{targets} {chunks}".split()]
        refused = problems(flags)
        assert all(any(flag.partition("=")[0] in problem for flag in flags) for problem in refused), refused
        for plan in [] if refused else plan_workers(parse(["--model=m", *flags]), checkpoint, machine):
            warm_up_as_a_worker_does(plan.config, machine)
            started += 1
    assert started


@pytest.mark.parametrize("machine", [CPU, gpu(141)], ids=["cpu", "gpu"])
def test_adaptive_mode_starts_with_all_three_targets(checkpoint: Checkpoint, machine: Machine) -> None:
    flags = "--mode adaptive --ttft-target-ms 500 --itl-target-ms 15 --pause-target-ms 60"
    prefill, decode = plan_workers(parse(["--model=m", *flags.split()]), checkpoint, machine)
    for worker in (prefill.config, decode.config):
        scheduler = worker.engine.scheduler
        assert (scheduler.tpot_target_s, scheduler.pause_s) == (0.015, 0.06)
        warm_up_as_a_worker_does(worker, machine)


@pytest.mark.parametrize(
    "chunks",
    [
        "--batching prefill-first",
        "--preset sglang",
        "--chunked-prefill-size -1",
        "--prefill-chunked-prefill-size -1",
    ],
)
def test_a_pause_target_needs_chunks_whose_size_it_can_set(chunks: str) -> None:
    flags = f"--mode adaptive --itl-target-ms 15 --pause-target-ms 60 {chunks}"
    with pytest.raises(ConfigError, match=f"--pause-target-ms 60 .* {chunks} ".rstrip()):
        parse(["--model=m", *flags.split()])
