"""Chunks beside decodes, sized by how long steps take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from engine.core.request import Request
from engine.loop.engine import Engine
from engine.loop.hooks import NO_HOOKS
from engine.sched.chunk_size.itl_controller import ITLController, PromptCost, whole_tiles
from tests.engine_config import engine_config
from tests.unit.engine.engines import KeepPages, deliver, make_request, run
from tests.unit.engine.fake_runner import FakeRunner


@given(
    base=st.floats(0.001, 0.012), per_token=st.floats(5e-6, 2e-4), target=st.sampled_from([0.015, 0.02, 0.05])
)
def test_steps_come_to_take_as_long_as_the_target(base: float, per_token: float, target: float) -> None:
    itl_controller = ITLController(target, largest=16384)
    for _ in range(80):
        tokens = itl_controller.budget
        itl_controller.observe(tokens, base + per_token * tokens)
    wanted = (target - base) / per_token
    if wanted > 64:
        assert abs(itl_controller.budget - min(wanted, 16384)) < 0.05 * wanted + 1


def test_prompts_are_not_starved_however_slow_the_decodes_are() -> None:
    itl_controller = ITLController(0.01, largest=4096)
    for _ in range(50):
        itl_controller.observe(itl_controller.budget, 1.0)
    assert itl_controller.budget >= 64


def test_a_small_chunk_in_time_says_nothing_about_large_ones() -> None:
    itl_controller = ITLController(0.02, largest=4096)
    before = itl_controller.budget
    itl_controller.observe(3, 0.005)
    assert itl_controller.budget == before


@given(
    base=st.floats(0.004, 0.013),
    fixed=st.floats(0.0005, 0.003),
    per_token=st.floats(5e-6, 2e-5),
    small=st.lists(st.integers(16, 200), min_size=50, max_size=50),
)
def test_steps_with_few_prompt_tokens_do_not_shrink_the_chunks_of_full_ones(
    base: float, fixed: float, per_token: float, small: list[int]
) -> None:
    """Any prompt tokens add a fixed time, so few of them seem expensive."""
    controller = ITLController(0.02, largest=16384)

    def step(tokens: int) -> None:
        controller.observe(tokens, base + (fixed + per_token * tokens if tokens else 0.0))

    for _ in range(5):
        step(0)
    for _ in range(40):
        step(controller.budget)
    full = controller.budget
    assert full == pytest.approx((0.02 - base - fixed) / per_token, rel=0.1)
    for tokens in small:
        step(min(tokens, full - 1))
        step(0)
    assert controller.budget == full


def test_a_stall_in_a_step_with_few_prompt_tokens_does_not_shrink_full_ones() -> None:
    controller = ITLController(0.02, largest=4096)
    for _ in range(40):
        controller.observe(controller.budget, 0.02)
    full = controller.budget
    controller.observe(full / 3, 0.2)
    assert controller.budget == full


def test_an_engine_cuts_prompts_beside_decodes_to_its_target() -> None:
    config = engine_config(
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
    config = engine_config(
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
    tiles = [128 if size > 3 * 128 - config.page_size else 64 for size in full]
    assert all(-size % tile <= config.page_size for size, tile in zip(full, tiles, strict=True)), sizes
    assert sum(chunks) == 3001 + 1


@given(st.integers(1, 5000), st.sampled_from([1, 16, 128]))
def test_whole_tiles_are_near(num_tokens: int, tile: int) -> None:
    assert num_tokens <= whole_tiles(num_tokens, tile, least=num_tokens) < num_tokens + tile
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
    config = engine_config(
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
    assert engine.scheduler.itl_controller is not None
    budget = engine.scheduler.itl_controller.budget
    observed: list[float] = []
    engine.scheduler.itl_controller.observe = lambda cost, _: observed.append(cost)  # type: ignore[method-assign]
    run(engine, make_request(2, [i % 90 for i in range(3000)], max_tokens=2, ignore_eos=True))
    begun, costs = 0, []
    for step in runner.steps:
        for length in (length for request, _, length in step if request == 2):
            costs.append(PromptCost(1000.0).of(begun, length))
            begun += length
    assert all(0.8 * budget < cost <= budget for cost in costs[:-3]), costs
    assert set(observed) - {0} <= set(costs), "what is observed is weighed as what was planned"
    assert len(observed) > 3


class Paced:
    """An engine, its clock, and how long those who decode beside prompts were seen to wait."""

    def __init__(self, hooks: Any = NO_HOOKS, *, overlap: bool, num_pages: int = 400) -> None:
        config = engine_config(
            model_path=Path("none"), page_size=4, num_pages=num_pages, itl_target_s=0.5, overlap=overlap
        )
        runner: Any = FakeRunner(config.page_size, config.num_pages)
        self.now = 0.0
        self.waits: list[float] = []
        self.engine = Engine(config, hooks=hooks, runner=runner, clock=lambda: self.now)
        assert self.engine.scheduler.itl_controller is not None
        self.engine.scheduler.itl_controller.observe = (  # type: ignore[method-assign]
            lambda cost, seconds: self.waits.append(seconds) if cost else None
        )

    def steps(self, count: int = 10_000) -> None:
        """At most this number of steps, while there is work; each takes 0.1 s."""
        for _ in range(count):
            if not self.engine.has_work:
                return
            self.now += 0.1
            self.engine.step()

    def expect(self, id: int) -> Callable[[], None]:
        """Reserve pages for a request; the result lets it arrive with its KV."""
        request = make_request(id, [id, 2, 3], max_tokens=9, ignore_eos=True)
        reservation = self.engine.reserve(request)
        assert reservation is not None
        return partial(deliver, self.engine, request, reservation)

    def submit(self, id: int, length: int) -> Request:
        request = make_request(id, [(id + i) % 90 for i in range(length)], max_tokens=1)
        self.engine.submit(request)
        return request


@pytest.mark.parametrize("overlap", [False, True])
def test_the_time_that_an_engine_was_idle_is_not_taken_for_a_step_s(overlap: bool) -> None:
    """An answer that comes with its KV decodes beside a prompt in the very first step after a pause."""
    paced = Paced(overlap=overlap)
    observed = 0
    for round in (1, 2):
        paced.expect(10 * round)()
        paced.submit(10 * round + 1, 900)
        paced.steps()
        assert len(paced.waits) == observed + 1, "of two chunks, the first delayed no decode"
        observed = len(paced.waits)
        paced.now += 1000.0
    assert max(paced.waits) < 0.2


@pytest.mark.parametrize("overlap", [False, True])
def test_time_in_which_nothing_could_be_admitted_does_not_count_as_step_time(overlap: bool) -> None:
    paced = Paced(KeepPages(), overlap=overlap, num_pages=48)
    arrive = paced.expect(1)
    kept = paced.submit(2, 100)
    paced.submit(3, 120)
    paced.steps(5)  # the first has ended, but a sender reads pages that the second needs
    assert kept.finish is not None
    paced.now += 1000.0
    arrive()
    paced.engine.release(kept)
    paced.steps()
    assert all(wait < 0.2 for wait in paced.waits), paced.waits


def test_steps_without_decodes_tell_nothing_about_the_wait_for_tokens() -> None:
    paced = Paced(overlap=False)
    paced.submit(1, 1200)
    paced.steps()
    assert not paced.waits
