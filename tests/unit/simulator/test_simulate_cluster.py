"""A simulated cluster: the real scheduler and placement, and a clock that jumps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import benchmarks
from benchmarks.lib.load.workload import Fixed, LogNormal, Uniform, make_workload
from benchmarks.lib.outcomes import Run
from benchmarks.modes import WARM_UP_SEED
from benchmarks.replay import deployment_of, replay
from benchmarks.simulated_cluster import LOADS
from router.config.choices import Mode
from simulator.deployment import Deployment
from simulator.objective import Objective
from simulator.outcome import STRICT
from simulator.simulation import NVLINK
from simulator.traffic import Arrival, bursts, chats, day, mooncake, poisson

MODES = [Deployment(mode=mode) for mode in Mode]

MEASURED_CHUNK = 16_384
"""Step budget of all workers when handoffs were measured."""


@pytest.mark.parametrize("deployment", MODES, ids=lambda d: d.name)
def test_everything_is_answered_and_the_same_each_time(deployment: Deployment) -> None:
    load = LOADS["table"](12.0, 2.0, 1)
    outcomes = deployment.simulation().run(load)
    assert [o.tokens for o in outcomes] == [a.max_tokens for a in load]
    assert deployment.simulation().run(load) == outcomes


@pytest.mark.parametrize("deployment", MODES, ids=lambda d: d.name)
def test_afterwards_every_page_is_free_and_no_load_is_left(deployment: Deployment) -> None:
    simulation = deployment.simulation()
    simulation.run(LOADS["table"](12.0, 2.0, 2))
    for worker in simulation.workers:
        assert worker.engine.check_pages().free == worker.settings.num_pages
    for seen in simulation.model.view(simulation.now).workers:
        assert (seen.prompts, seen.decodes, seen.incoming, seen.context_tokens) == ((), 0, 0, 0)


def test_a_lone_prompts_handoff_costs_what_was_measured() -> None:
    """4.7 ms at 2,048 tokens and 16 at 16,384."""
    for tokens, measured in ((2048, 0.0047), (16_384, 0.016)):
        load = [Arrival(0.0, tokens, 8)]
        (there,), (here,) = (
            Deployment(mode=mode, chunk_tokens=MEASURED_CHUNK).simulation().run(load)
            for mode in (Mode.DISAGG, Mode.MIXED)
        )
        assert (there.second - there.first) - (here.second - here.first) == pytest.approx(measured, abs=0.003)


@pytest.mark.parametrize(("mode", "rate"), [("mixed", 14.0), ("disagg", 18.0)])
def test_it_agrees_with_what_was_measured_on_two_gpus(mode: str, rate: float) -> None:
    """The very requests with which results/modes-h200-x2.json was made."""
    content = json.loads((Path(benchmarks.__file__).parent / "results" / "modes-h200-x2.json").read_text())
    runs = map(Run.from_json, content["points"])
    run = next(r for r in runs if (r.mode, r.rate, r.seed) == (mode, rate, 2))
    warm_up, load = (
        make_workload(
            count=count,
            rate=of,
            input_lengths=LogNormal(2048, 0.8, 16_384),
            output_lengths=Uniform(128, 512),
            seed=seed,
        )
        for count, of, seed in ((64, 18.0, WARM_UP_SEED), (round(20 * rate), rate, 2))
    )
    objective = Objective(ttft_s=0.5, tpot_s=0.015)
    deployment = deployment_of(mode, content["flags"][mode], objective)
    replayed = replay(run, deployment, warm_up, load, objective)
    measured, simulated = replayed.measured, replayed.simulated
    assert simulated.good == pytest.approx(measured.good, abs=0.04)
    assert simulated.ttft_p50 == pytest.approx(measured.ttft_p50, rel=0.15)
    assert simulated.ttft_p99 == pytest.approx(measured.ttft_p99, rel=0.15)
    assert simulated.tpot_p50 == pytest.approx(measured.tpot_p50, rel=0.2)


def test_adaptive_keeps_what_the_better_fixed_mode_keeps() -> None:
    load = LOADS["table"](14.0, 8.0, 4)
    mixed, disagg, adaptive = (
        sum(o.meets(STRICT) for o in deployment.simulation().run(load)) for deployment in MODES
    )
    assert adaptive >= 0.98 * max(mixed, disagg)


def test_a_chat_finds_its_history_in_the_cache() -> None:
    load = chats(4.0, 10.0, Fixed(100), Fixed(60), seed=1)
    outcomes = Deployment(mode=Mode.ADAPTIVE, radix_cache=True).simulation().run(load)
    assert sum(o.cached_tokens for o in outcomes) > 0.3 * sum(o.prompt_tokens for o in outcomes)


def test_a_chat_finds_its_history_where_its_state_has_a_checkpoint() -> None:
    """With few slots, requests wait for one, and take those of checkpoints."""
    load = chats(4.0, 10.0, Fixed(100), Fixed(60), seed=1)
    cached, seconds = {}, {}
    for slots in (0, 512, 3):
        deployment = Deployment(
            mode=Mode.ADAPTIVE, radix_cache=True, state_slots=slots, max_running=slots or 512
        )
        simulation = deployment.simulation()
        outcomes = simulation.run(load)
        cached[slots] = sum(o.cached_tokens for o in outcomes)
        seconds[slots] = sum(o.ttft for o in outcomes)
        for worker in simulation.workers:
            worker.engine.check_pages()
    assert 0 < cached[3] < cached[512] <= cached[0], cached
    assert seconds[3] > seconds[512]


def test_a_handoff_ends_with_the_state() -> None:
    (plain,), (stateful,) = (
        Deployment(mode=Mode.DISAGG, link=link).simulation().run([Arrival(0.0, 2048, 8)])
        for link in (NVLINK, replace(NVLINK, state_bytes=int(0.01 * NVLINK.bytes_per_s)))
    )
    assert stateful.second - plain.second == pytest.approx(0.01, abs=0.001)


def test_loads_have_the_rate_they_promise() -> None:
    for arrivals in (
        poisson(10, 100, Fixed(10), Fixed(10), seed=1),
        bursts(10, 100, Fixed(10), Fixed(10), seed=1),
        day(10, 100, ((Fixed(10), Fixed(10)), (Fixed(20), Fixed(10))), seed=1),
        chats(10, 100, Fixed(10), Fixed(10), seed=1, think_s=1.0),
    ):
        assert len(arrivals) == pytest.approx(1000, rel=0.25)
        assert [a.at for a in arrivals] == sorted(a.at for a in arrivals)


def test_a_mooncake_trace_is_read_and_shares_its_blocks() -> None:
    lines = [
        '{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 9]}',
        '{"timestamp": 1000, "input_length": 600, "output_length": 3, "hash_ids": [0, 8]}',
    ]
    first, second = mooncake(lines, speed=2.0)
    assert (first.at, first.prompt_tokens, first.max_tokens) == (0.5, 600, 3)
    one, other = list(first.prompt()), list(second.prompt())
    assert (len(one), len(other)) == (600, 1100)
    assert one[:512] == other[:512]
    assert one[512] not in other


@pytest.mark.parametrize(
    "line", ["nonsense", "{}", '{"timestamp": 1, "input_length": 0, "output_length": 1}']
)
def test_a_line_that_is_no_trace_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        mooncake(['{"timestamp": 1, "input_length": 1, "output_length": 1}', line])
