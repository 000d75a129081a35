"""Chunks beside decodes, sized by how long steps take."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from engine.config import EngineConfig
from engine.engine import Engine
from engine.pacing import ChunkPacer, PromptCost, whole_tiles
from tests.unit.fake_runner import FakeRunner
from tests.unit.test_engine import make_request, run


@given(
    base=st.floats(0.001, 0.012), per_token=st.floats(5e-6, 2e-4), target=st.sampled_from([0.015, 0.02, 0.05])
)
def test_steps_come_to_take_as_long_as_the_target(base: float, per_token: float, target: float) -> None:
    pacer = ChunkPacer(target, largest=16384)
    for _ in range(80):
        tokens = pacer.budget
        pacer.observe(tokens, base + per_token * tokens)
    wanted = (target - base) / per_token
    if wanted > 64:
        assert abs(pacer.budget - min(wanted, 16384)) < 0.05 * wanted + 1


def test_prompts_are_not_starved_however_slow_the_decodes_are() -> None:
    pacer = ChunkPacer(0.01, largest=4096)
    for _ in range(50):
        pacer.observe(pacer.budget, 1.0)
    assert pacer.budget >= 64


def test_a_small_chunk_in_time_says_nothing_about_large_ones() -> None:
    pacer = ChunkPacer(0.02, largest=4096)
    before = pacer.budget
    pacer.observe(3, 0.005)
    assert pacer.budget == before


def test_an_engine_cuts_prompts_beside_decodes_to_its_target() -> None:
    config = EngineConfig(
        model_path=Path("none"), page_size=4, num_pages=400, chunk_budget=512, itl_target_s=0.5
    )
    seconds = itertools.count()
    runner: Any = FakeRunner(config.page_size, config.num_pages)
    engine = Engine(config, runner=runner, clock=lambda: float(next(seconds)))
    engine.submit(make_request(1, [1, 2, 3], max_tokens=60, ignore_eos=True))
    for _ in range(3):
        engine.step()
    run(engine, make_request(2, [i % 90 for i in range(1200)], max_tokens=2, ignore_eos=True))
    chunks = [length for step in runner.steps for request, _, length in step if request == 2]
    assert chunks[0] > 400
    assert chunks[2] < 300, "steps take twice their target: the next chunk is smaller"


def test_full_steps_fill_whole_tiles_and_a_last_chunk_is_not_cut_for_one() -> None:
    config = EngineConfig(
        model_path=Path("none"),
        page_size=4,
        num_pages=900,
        chunk_budget=2048,
        itl_target_s=0.5,
        token_tile=128,
    )
    seconds = itertools.count()
    runner: Any = FakeRunner(config.page_size, config.num_pages)
    engine = Engine(config, runner=runner, clock=lambda: 0.05 * float(next(seconds)))
    for request in (1, 2, 3):
        engine.submit(make_request(request, [1, 2, 3], max_tokens=60, ignore_eos=True))
    for _ in range(3):
        engine.step()
    begun = len(runner.steps)
    run(engine, make_request(4, [i % 90 for i in range(3001)], max_tokens=2, ignore_eos=True))
    sizes = [sum(length for _, _, length in step) for step in runner.steps[begun:]]
    chunks = [length for step in runner.steps[begun:] for request, _, length in step if request == 4]
    full = sizes[: len(chunks) - 3]  # then the last chunk, and two tokens
    assert len(full) > 2
    assert all(128 - size % 128 <= config.page_size or size % 128 == 0 for size in full), sizes
    assert sum(chunks) == 3001 + 1


@given(st.integers(1, 5000), st.sampled_from([1, 16, 128]))
def test_whole_tiles_are_near(num_tokens: int, tile: int) -> None:
    tokens = whole_tiles(num_tokens, tile)
    assert tokens > 0
    assert abs(tokens - num_tokens) <= tile / 2 or num_tokens < tile
    assert tokens % tile == 0 or (tokens < 3 * tile and tokens % (tile // 2) == 0)


def test_tokens_behind_a_long_context_cost_more() -> None:
    cost = PromptCost(20_000)
    assert cost.of(0, 100) == 100 * (1 + 50 / 20_000)
    assert math.isclose(cost.of(20_000, 100), 2 * cost.of(0, 100), rel_tol=0.01)
    assert PromptCost().of(50_000, 100) == 100
    halves = cost.of(1000, 300) + cost.of(1300, 300)
    assert math.isclose(cost.of(1000, 600), halves)


def test_chunks_become_shorter_as_their_context_grows() -> None:
    config = EngineConfig(
        model_path=Path("none"),
        page_size=4,
        num_pages=900,
        max_model_len=4096,
        chunk_budget=512,
        itl_target_s=0.5,
        costly_context=1000.0,
    )
    runner: Any = FakeRunner(config.page_size, config.num_pages)
    engine = Engine(config, runner=runner, clock=lambda: 0.0)
    engine.submit(make_request(1, [1, 2, 3], max_tokens=90, ignore_eos=True))
    for _ in range(3):
        engine.step()
    assert engine.scheduler.pacer is not None
    budget = engine.scheduler.pacer.budget
    observed: list[float] = []
    engine.scheduler.pacer.observe = lambda cost, _: observed.append(cost)  # type: ignore[method-assign]
    run(engine, make_request(2, [i % 90 for i in range(3000)], max_tokens=2, ignore_eos=True))
    begun, costs = 0, []
    for step in runner.steps:
        for length in (length for request, _, length in step if request == 2):
            costs.append(PromptCost(1000.0).of(begun, length))
            begun += length
    assert all(0.8 * budget < cost <= budget for cost in costs[:-3]), costs
    assert set(observed) <= set(costs), "what is observed is weighed as what was planned"
    assert len(observed) > 3
