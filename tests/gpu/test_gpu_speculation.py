"""Drafts on a GPU: the answers are those without drafts, and drafts of these answers are right."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.config import SpeculationConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from tests.faults.support.small_model import save_small_model
from tests.gpu.driving import generate, gpu_config, random_tokens
from tests.gpu.models import VOCAB, save
from tests.oracle import Oracle, speculate
from tests.unit.engine.grammar.test_structured_output import GRAMMARS, PROMPTS

MOST = SpeculationConfig(num_draft_tokens=4, adaptive=False)


@pytest.mark.parametrize("graphs", [None, 0, 32], ids=["float32", "eager", "graphs"])
@pytest.mark.parametrize("acceptance", [0.0, 0.7, 1.0])
def test_drafts_of_the_answers_are_right(acceptance: float, graphs: int | None, tmp_path: Path) -> None:
    """`graphs` None: in float32, where answers are the same; else in bfloat16, where a near tie may differ
    and with it all that follows."""
    prompts = [random_tokens(n, seed=n) for n in (5, 100, 33, 300, 2)]
    save("llama-64", tmp_path)
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    settings: dict[str, object] = {"overlap": True, "cuda_graph_max_batch": graphs or 0}
    if graphs is None:
        settings |= {"dtype": "float32", "attention_backend": "torch"}
    plain = generate(gpu_config(tmp_path, **settings), prompts, sampling)
    engine = Engine(gpu_config(tmp_path, speculation=MOST, **settings))
    rng = random.Random(1)
    speculate(engine, MOST, lambda r: [Oracle(plain[r.id], VOCAB, acceptance, rng)])
    requests = [Request(i, prompt, sampling) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        assert not engine.step().failed
    engine.check_pages()
    drafts = engine.stats().drafts
    engine.close()
    assert drafts.drafted > 100
    if graphs is None:
        assert [request.output for request in requests] == plain
    if acceptance == 1.0:
        assert drafts.accepted > 0.4 * drafts.drafted


@pytest.mark.parametrize("acceptance", [0.0, 0.7, 1.0])
def test_rows_behind_drafts_have_their_own_masks_and_counts(acceptance: float, tmp_path: Path) -> None:
    """In float32, where answers are the same."""
    folder = save_small_model(tmp_path).folder
    exact = {"dtype": "float32", "attention_backend": "torch", "overlap": True}
    answers = _answers(Engine(gpu_config(folder, **exact)))
    engine = Engine(gpu_config(folder, speculation=MOST, **exact))
    vocab, rng = engine.runner.spec.vocab_size, random.Random(1)
    speculate(engine, MOST, lambda r: [Oracle(answers[r.id], vocab, acceptance, rng)])
    assert _answers(engine) == answers
    drafts = engine.stats().drafts
    assert drafts.drafted > 100
    assert acceptance < 1.0 or drafts.accepted == drafts.drafted


def _answers(engine: Engine) -> list[list[int]]:
    """Under penalties, and under grammars."""
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7}
    drawn = {"max_tokens": 50, "temperature": 0.8, "ignore_eos": True, "logit_bias": ((5, 3.0),)}
    samplings = [
        SamplingParams(max_tokens=50, ignore_eos=True, **penalties),
        SamplingParams(seed=3, top_p=0.9, **drawn, **penalties),
        SamplingParams(seed=4, logprobs=2, **drawn, **penalties),
        *(SamplingParams(max_tokens=50, grammar=grammar) for grammar in GRAMMARS),
        SamplingParams(max_tokens=50, grammar=GRAMMARS[1], temperature=1.0, **penalties),
    ]
    requests = [Request(i, PROMPTS[i % 4], sampling) for i, sampling in enumerate(samplings)]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        assert not engine.step().failed
    engine.check_pages()
    engine.close()
    return [request.output for request in requests]
