"""What a step with drafts reports of itself: rows, contexts and tokens, by which workers are compared."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.config import EngineConfig, SchedulerConfig, SpeculationConfig
from engine.core.events import StepMeasured
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from simulator.runner import Clock, FormulaRunner
from tests.oracle import Oracle, speculate
from tests.unit.engine.sched.drafts.simulated import ANSWER, an_h200

CONTEXT, DRAFTS = 100, 3


@pytest.mark.parametrize(("acceptance", "accepted"), [(0.0, 0), (1.0, DRAFTS)])
def test_a_verify_chunk_counts_each_of_its_rows_and_of_its_tokens(acceptance: float, accepted: int) -> None:
    clock, steps = Clock(), list[StepMeasured]()
    config = EngineConfig(
        model_path=Path("none"),
        num_pages=100,
        max_model_len=8192,
        scheduler=SchedulerConfig(max_running_requests=2, chunk_budget=2048),
        radix_cache=False,
        overlap=True,
    )
    engine = Engine(config, runner=FormulaRunner(an_h200(), clock), clock=clock.now)
    rng, answer = random.Random(1), [ANSWER] * 300
    drafts = SpeculationConfig(num_draft_tokens=DRAFTS, adaptive=False)
    speculate(engine, drafts, lambda request: [Oracle(answer, 100, acceptance, rng)])
    requests = [
        Request(id, [7] * CONTEXT, SamplingParams(max_tokens=120, ignore_eos=True)) for id in range(2)
    ]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        before = [request.num_known for request in requests]
        step = engine.step()
        whole = [v.drafted for v in step.verified] == [DRAFTS, DRAFTS]
        if step.measured is not None and whole and not step.measured.prompt_tokens:
            steps.append(step.measured)
            # Without a draft a decode of n known tokens attends to n, a drafted token to one more each.
            contexts = sum(known + j for known in before for j in range(1 + DRAFTS))
            assert step.measured.context_tokens == contexts
    assert steps
    for measured in steps:
        assert measured.answers == 2
        assert measured.decodes == 2 * (1 + DRAFTS)
        assert measured.tokens == 2 * (1 + accepted)
