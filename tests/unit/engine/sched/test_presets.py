"""What holds for every preset and policy, over random workloads, on a runner whose KV can be read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import Batching, Policy, SchedulerConfig
from engine.core.request import Request
from engine.loop.engine import Engine
from engine.sched.presets import PRESETS, Preset
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.engine.fake_runner import reference

PAGES = {1: 160, 4: 40}
"""Pages of the pool by page size: as many tokens."""
MAX_STEPS = 3000


@dataclass(frozen=True)
class Work:
    at: int
    """Steps until it comes, after the one before it."""
    prompt: tuple[int, ...]
    max_tokens: int
    priority: int
    tenant: str


works = st.lists(
    st.builds(
        Work,
        at=st.integers(0, 3),
        prompt=st.tuples(st.integers(0, 2), st.integers(1, 70)).map(lambda p: (p[0],) * p[1]),
        max_tokens=st.integers(1, 30),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from(["a", "b"]),
    ),
    min_size=1,
    max_size=14,
)


def scaled(preset: Preset, **changes: Any) -> tuple[SchedulerConfig, int]:
    """The preset with budgets for prompts of tens of tokens."""
    base = PRESETS[preset]
    small: dict[str, Any] = {"max_running_requests": 4}
    if base.scheduler.chunk_budget is not None:
        small["chunk_budget"] = 16
    if base.scheduler.long_prefill_token_threshold is not None:
        small["long_prefill_token_threshold"] = 8
    return replace(base.scheduler, **small | changes), min(base.page_size, 4)


def serve(engine: Engine, work: list[Work]) -> None:
    """All that comes ends with the reference's tokens; the invariants hold in every step."""
    coming = [(entry, make_request(i, list(entry.prompt), entry.max_tokens)) for i, entry in enumerate(work)]
    requests = [request for _, request in coming]
    for entry, request in coming:
        request.priority, request.tenant = entry.priority, entry.tenant
    runner: Any = engine.runner
    until = coming[0][0].at
    for _ in range(MAX_STEPS):
        while coming and until <= 0:
            engine.submit(coming.pop(0)[1])
            until = coming[0][0].at if coming else 0
        until -= 1
        waiting = bool(engine.scheduler.num_waiting or engine.scheduler.running)
        before = len(runner.steps)
        output = engine.step()
        engine.check_pages()
        idle = not output.num_tokens and not output.completed
        assert not (idle and waiting), "a step is empty though there is work"
        if len(runner.steps) > before:
            check_budget(engine, runner.steps[-1])
        if not engine.has_work and not coming:
            break
    assert [r.output for r in requests] == [reference(w.prompt, w.max_tokens) for w in work]
    counts = engine.check_pages()
    assert counts.free + counts.cached == counts.total


def check_budget(engine: Engine, step: list[tuple[int, int, int]]) -> None:
    config = engine.scheduler.config
    decodes = sum(length == 1 for _, _, length in step)
    tokens = sum(length for _, _, length in step)
    # Prompts keep a page of a step that decodes would fill.
    limit = config.prefill_limit(engine.max_tokens)
    assert tokens <= max(limit, decodes + engine.config.page_size) or config.chunk_budget is None
    if config.batching is not Batching.MIXED:
        assert decodes in (0, len(step)) or decodes <= 4


def engine_for(config: SchedulerConfig, page: int, **changes: Any) -> Engine:
    return make_engine(scheduler=config, page_size=page, num_pages=PAGES[page], **base_of(config), **changes)


def base_of(config: SchedulerConfig) -> dict[str, Any]:
    """`make_engine` has sizes of its own, which these replace."""
    return {"chunk_budget": config.chunk_budget, "chunked_prefill": config.chunked_prefill} | {
        "max_running_requests": config.max_running_requests
    }


@settings(max_examples=60, deadline=None)
@given(work=works, preset=st.sampled_from(Preset), overlap=st.booleans(), radix=st.booleans())
def test_every_preset_serves_random_requests(
    work: list[Work], preset: Preset, overlap: bool, radix: bool
) -> None:
    config, page = scaled(preset)
    serve(engine_for(config, page, overlap=overlap, radix_cache=radix), work)


@settings(max_examples=60, deadline=None)
@given(
    work=works,
    preset=st.sampled_from(Preset),
    policy=st.sampled_from(Policy),
    batching=st.sampled_from(Batching),
    preempts=st.booleans(),
    partial=st.sampled_from([None, 1, 2]),
    fair=st.booleans(),
    tenants=st.booleans(),
)
def test_every_combination_of_settings_serves_random_requests(
    work: list[Work],
    preset: Preset,
    policy: Policy,
    batching: Batching,
    preempts: bool,
    partial: int | None,
    fair: bool,
    tenants: bool,
) -> None:
    config, page = scaled(
        preset,
        policy=policy,
        batching=batching,
        priority_preemption_threshold=0 if preempts and policy is Policy.PRIORITY else None,
        max_partial_prefills=partial,
        fair_partial_prefills=fair and partial is not None,
        tenant_quantum=8 if tenants and policy not in (Policy.LPM, Policy.DFS_WEIGHT) else None,
        aging_tokens=100,
    )
    serve(engine_for(config, page), work)


@settings(max_examples=30, deadline=None)
@given(work=works, preset=st.sampled_from([Preset.SGLANG, Preset.VLLM]))
def test_with_chunking_off_prompts_go_whole_and_the_budget_holds(work: list[Work], preset: Preset) -> None:
    config, page = scaled(preset, chunk_budget=72, chunked_prefill=False)
    engine = engine_for(config, page)
    serve(engine, work)
    runner: Any = engine.runner
    longest = 0
    for step in runner.steps:
        for id, start, length in step:
            whole = start == 0 and length == len(work[id].prompt)
            longest = max(longest, length if not whole else 0)
    assert longest <= 72


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 400), min_size=1, max_size=12), st.sampled_from([Preset.SGLANG, Preset.VLLM]))
def test_no_step_leaves_budget_that_a_prompt_could_use(lengths: list[int], preset: Preset) -> None:
    config = replace(PRESETS[preset].scheduler, chunk_budget=64)
    engine = make_engine(
        scheduler=config, page_size=1, num_pages=8000, chunk_budget=64, max_running_requests=16
    )
    requests: list[Request] = []
    for id, length in enumerate(lengths):
        requests.append(make_request(id, [id] * length, 1))
        engine.submit(requests[-1])
    runner: Any = engine.runner
    while engine.has_work:
        left = sum(r.num_pending for r in requests if r.finish is None and not r.output)
        engine.step()
        prefill = sum(length for _, _, length in runner.steps[-1])
        assert prefill == min(64, left), "the budget is filled exactly while prompts are left"


@pytest.mark.parametrize("preset", Preset)
def test_a_preset_is_accepted_as_it_is(preset: Preset) -> None:
    settings = PRESETS[preset]
    engine = make_engine(
        scheduler=settings.scheduler,
        page_size=settings.page_size,
        num_pages=4096,
        **base_of(settings.scheduler),
    )
    request = make_request(1, [1] * 3000, 4)
    engine.submit(request)
    while engine.has_work:
        engine.step()
    assert request.output == reference(request.prompt, 4)
