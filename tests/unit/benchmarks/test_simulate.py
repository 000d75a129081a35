"""A simulated load: the engine's own decisions, and a clock that jumps."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.lib.engines.driven import simulate
from benchmarks.lib.engines.simulated_gpu import FRONT_S, simulated_config
from benchmarks.lib.load.workload import Fixed, LogNormal, Work, make_workload
from benchmarks.lib.report import summarize
from engine.sched.presets import Preset
from engine.sched.scheduler import Scheduler
from router.placement import StepWork
from simulator.device import ENGINE_H200_8B, ENGINE_H200_70B_FP8

LOAD = make_workload(
    count=60,
    rate=20.0,
    input_lengths=LogNormal(400, 0.8, 4096),
    output_lengths=Fixed(40),
    seed=1,
)


def test_everything_is_answered_and_the_same_each_time() -> None:
    config = simulated_config(itl_target_s=0.02)
    records = simulate(LOAD, config)
    assert [record.output_tokens for record in records] == [40] * 60
    assert [record.arrivals for record in simulate(LOAD, config)] == [r.arrivals for r in records]


def test_a_request_alone_takes_what_its_steps_cost() -> None:
    costs = ENGINE_H200_8B
    (record,) = simulate([Work(0.0, [1] * 1000, 11)], simulated_config())
    prompt = costs.seconds(StepWork(1000, 1000 * 500.0))
    assert record.ttft == pytest.approx(FRONT_S + prompt + costs.host + costs.host_prompts, rel=0.1)
    assert record.tpot == pytest.approx(costs.of_matrices(1) + costs.step, rel=0.1)


def test_a_lower_target_makes_for_smaller_gaps() -> None:
    tight, loose = (
        summarize(simulate(LOAD, simulated_config(itl_target_s=target))) for target in (0.012, 0.040)
    )
    assert tight.itl.p99 < loose.itl.p99
    assert tight.ttft.p99 > loose.ttft.p99


def test_prompts_beside_decodes_that_exceed_the_target_do_not_wait_for_seconds() -> None:
    chat = make_workload(
        count=60,
        rate=4.0,
        input_lengths=LogNormal(372, 0.8, 4096),
        output_lengths=LogNormal(200, 0.7, 1024),
        seed=1,
    )
    records = simulate(chat, simulated_config(itl_target_s=0.02), ENGINE_H200_70B_FP8)
    summary = summarize(records)
    assert summary.ttft.p50 < 0.2
    assert summary.ttft.p99 < 2.5
    assert summary.itl.p50 > 0.02
    assert summary.itl.p99 < 1.6 * summary.itl.p50
    assert summary.tpot.p50 < 1.2 * summary.itl.p50


def test_chunks_grow_again_after_steps_that_took_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole tiles of rows, the smallest chunks could otherwise stay below the smallest budget for good."""
    observe, steps = Scheduler.observe, itertools.count()

    def stalling(self: Scheduler, cost: float, seconds: float) -> None:
        stalls = cost and 100 <= next(steps) < 140
        observe(self, cost, 8 * seconds if stalls else seconds)

    monkeypatch.setattr(Scheduler, "observe", stalling)
    chat = make_workload(
        count=80,
        rate=4.0,
        input_lengths=LogNormal(372, 0.8, 4096),
        output_lengths=LogNormal(200, 0.7, 1024),
        seed=1,
    )
    summary = summarize(simulate(chat, simulated_config(itl_target_s=0.02), ENGINE_H200_70B_FP8))
    assert summary.ttft.p99 < 2.5


def test_a_long_prompt_gets_on_though_short_ones_end_with_every_step() -> None:
    short = [Work(k / 150, [k % 1000 + 1] * 100, 4) for k in range(900)]
    long = Work(1.001, [7] * 16_000, 4)
    load = sorted([*short, long], key=lambda work: work.arrival_s)
    record = simulate(load, simulated_config(itl_target_s=0.02))[load.index(long)]
    assert record.arrivals[0] < 4.5  # starved, it would wait until the last arrival, at 6 s


@pytest.mark.parametrize("preset", Preset)
def test_every_preset_can_be_simulated(preset: Preset) -> None:
    records = simulate(LOAD, simulated_config(preset))
    assert [record.output_tokens for record in records] == [work.max_tokens for work in LOAD]
