"""Warm-up prompts cover every size of step and leave nothing behind."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig, SpeculationConfig
from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from engine.loop.warmup import WarmupPlan, warm_up, warmup_plan_for
from engine.speculation.kinds import DrafterKind
from tests.engine_config import engine_config
from tests.unit.engine.fake_runner import FakeRunner, reference
from tests.unit.tiny import make_config, save_tiny_llama

PROMPT = list(range(2, 40))


def fake(**changes: Any) -> tuple[Any, EngineConfig]:
    settings = {"page_size": 4, "num_pages": 512, "chunk_budget": 256, "overlap": True} | changes
    config = engine_config(**settings)
    return FakeRunner(config.page_size, config.num_pages), config


def answer(runner: Any, config: EngineConfig) -> list[int]:
    engine = Engine(config, runner=runner)
    request = Request(0, PROMPT, SamplingParams(max_tokens=12, ignore_eos=True))
    engine.submit(request)
    while engine.has_work:
        engine.step()
    engine.check_pages()
    assert request.num_cached == 0
    return request.output


def test_batches_and_prompts_of_all_sizes_are_computed() -> None:
    runner, config = fake()
    warm_up(runner, config, WarmupPlan(crowd=20, prompts=(9, 30, 270)))
    decodes = {sum(length == 1 for _, _, length in step) for step in runner.steps}
    chunks = {length for step in runner.steps for _, _, length in step if length > 1}
    assert {20, 13, 5} <= decodes
    assert {8, 9, 30} <= chunks
    assert max(chunks) < 270  # it took two steps


@pytest.mark.parametrize("pages", [4, 40])
def test_little_memory_is_enough(pages: int) -> None:
    runner, config = fake(num_pages=pages, max_running_requests=8, max_waiting_requests=1)
    warm_up(runner, config, WarmupPlan(crowd=300, prompts=(30, 5000)))
    assert runner.steps


def test_who_comes_after_it_gets_the_same_tokens() -> None:
    runner, config = fake()
    warm_up(runner, config, WarmupPlan(crowd=8, prompts=(50,)))
    assert answer(runner, config) == reference(PROMPT, 12, ignore_eos=True)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_real_model_gives_the_same_tokens(tmp_path: Path, overlap: bool) -> None:
    save_tiny_llama(tmp_path)
    config = make_config(tmp_path, overlap=overlap)
    fresh, warmed_up = ModelRunner(config), ModelRunner(config)
    warm_up(warmed_up, config, WarmupPlan(crowd=8, prompts=(5, 60, 100)))
    assert answer(warmed_up, config) == answer(fresh, config)


def test_a_gpu_warms_up_what_it_has_captured_and_a_cpu_little() -> None:
    config = engine_config(
        device="cuda",
        max_running_requests=100,
        chunk_budget=8192,
        cuda_graph_max_tokens=1024,
    )
    plan = warmup_plan_for(config)
    assert plan.crowd == 100
    *ladder, coarse, longer, longest = plan.prompts
    assert ladder[0] == 16
    assert 800 < ladder[-1] < 1024
    assert all(b <= 1.25 * a for a, b in pairwise(ladder))
    assert 1024 < coarse < longer < 8192 < longest
    assert plan.alone
    assert warmup_plan_for(EngineConfig(model_path=Path("none"))) == WarmupPlan(crowd=1)


def test_what_a_lone_request_may_ask_for_is_warmed_up() -> None:
    """Scored prompts, and drafts of greedy and of sampled answers, whether or not they would pay."""
    runner, config = fake(
        speculation=SpeculationConfig(drafters=frozenset({DrafterKind.NGRAM}), num_draft_tokens=4)
    )
    scored: list[int | None] = []
    drafted: list[tuple[bool, int]] = []
    prepare = runner.prepare

    def watched(plan: StepPlan) -> Any:
        scored.extend(c.request.sampling.prompt_logprobs for c in plan.chunks if c.num_scored)
        drafted.extend((c.request.sampling.has_penalties, len(c.draft)) for c in plan.chunks if c.draft)
        return prepare(plan)

    runner.prepare = watched
    warm_up(runner, config, WarmupPlan(crowd=2, alone=True))
    assert scored == [1]
    assert {edited for edited, _ in drafted} == {True, False}


def test_single_rows_are_warmed_up_too() -> None:
    runner, config = fake()
    steps: list[list[tuple[int, bool]]] = []
    prepare = runner.prepare

    def watched(plan: StepPlan) -> Any:
        steps.append([(c.length, c.request.sampling.is_greedy) for c in plan.chunks])
        return prepare(plan)

    runner.prepare = watched
    warm_up(runner, config, WarmupPlan(crowd=20, prompts=(9,), alone=True))
    for greedy in (True, False):
        assert [(8, greedy)] in steps
        assert [(1, greedy)] in steps


def test_sampled_rows_are_warmed_up_beside_greedy_ones() -> None:
    runner, config = fake()
    asked: list[set[tuple[bool, bool]]] = []
    prepare = runner.prepare

    def watched(plan: StepPlan) -> Any:
        asked.append({(c.request.sampling.is_greedy, c.request.sampling.truncates) for c in plan.chunks})
        return prepare(plan)

    runner.prepare = watched
    warm_up(runner, config, WarmupPlan(crowd=20, prompts=(9, 30)))
    assert {(True, False), (False, True)} in asked
    assert {(True, False)} in asked
