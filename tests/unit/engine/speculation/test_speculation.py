"""Answers of a real model with drafts: the tokens, log-probabilities and ends that there are without."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel, Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from engine.config import SpeculationConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from engine.speculation.drafters import Drafter
from engine.speculation.kinds import DraftHints
from tests.drafters import Random
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.integration.models.kinds_of_kv import mamba
from tests.oracle import Oracle, speculate
from tests.unit.engine.grammar.test_structured_output import GRAMMARS, PROMPTS
from tests.unit.engine.speculation.drafting import answers
from tests.unit.tiny import make_config

MAX_TOKENS = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return save_small_model(tmp_path_factory.mktemp("model"))


_LINEAR: dict[str, Any] = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_hidden_layers": 3,
}


def _qwen3_5(**fields: Any) -> PreTrainedModel:
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**(fields | _LINEAR)))


def _qwen3_next(**fields: Any) -> PreTrainedModel:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    experts["shared_expert_intermediate_size"] = 24
    return Qwen3NextForCausalLM(Qwen3NextConfig(**(fields | _LINEAR | experts)))


@pytest.fixture(scope="module")
def models(model: SmallModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SmallModel]:
    """Without and with recurrent states."""
    families = {"qwen3.5": _qwen3_5, "qwen3-next": _qwen3_next, "nemotron-h": mamba}
    saved = {name: save_small_model(tmp_path_factory.mktemp(name), f) for name, f in families.items()}
    return {"llama": model, **saved}


@st.composite
def samplings(draw: st.DrawFn) -> SamplingParams:
    sampling = SamplingParams(
        max_tokens=draw(st.sampled_from([1, 2, 7, MAX_TOKENS])),
        temperature=draw(st.sampled_from([0.0, 0.6, 1.3])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        top_k=draw(st.sampled_from([0, 5])),
        min_p=draw(st.sampled_from([0.0, 0.05])),
        seed=draw(st.integers(0, 5)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.2])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.7])),
        logprobs=draw(st.sampled_from([None, 0, 3])),
        logit_bias=draw(st.sampled_from([(), ((5, 3.0), (9, -4.0))])),
        stop_token_ids=draw(st.sampled_from([(), (17, 40, 41, 42)])),
    )
    grammar = draw(st.sampled_from([None, None, *GRAMMARS]))
    if grammar is not None:
        return replace(sampling, grammar=grammar)
    ends = {"min_tokens": min(draw(st.sampled_from([0, 5])), sampling.max_tokens)}
    return replace(sampling, ignore_eos=draw(st.booleans()), **ends)


@settings(max_examples=45, deadline=None)
@given(
    name=st.sampled_from(["llama", "qwen3.5", "qwen3-next", "nemotron-h"]),
    chosen=st.lists(samplings(), min_size=1, max_size=4),
    drafter=st.sampled_from(["random", "wrong", "sometimes", "right", "configured"]),
    most=st.integers(1, 6),
    config=st.fixed_dictionaries(
        {
            "overlap": st.booleans(),
            "num_pages": st.sampled_from([128, 40]),
            "chunk_budget": st.sampled_from([8, 64, None]),
            "num_state_slots": st.sampled_from([3, 8]),
        }
    ),
    seed=st.integers(0, 99),
)
def test_every_answer_is_what_it_is_without_drafts(
    models: dict[str, SmallModel],
    name: str,
    chosen: list[SamplingParams],
    drafter: str,
    most: int,
    config: dict[str, Any],
    seed: int,
) -> None:
    def requests(hints: dict[int, DraftHints]) -> list[Request]:
        return [
            Request(id, PROMPTS[id % len(PROMPTS)], sampling, hints=hints.get(id, DraftHints()))
            for id, sampling in enumerate(chosen)
        ]

    engine = Engine(make_config(models[name].folder, max_model_len=256, **config))
    plain = answers(engine, requests({}))
    rng = random.Random(seed)
    vocab = engine.runner.spec.vocab_size
    tokens = {id: [t[0] for t in told if isinstance(t, tuple)] for id, told in plain.items()}

    def drafters_of(request: Request) -> list[Drafter]:
        if drafter == "random":
            return [Random(vocab, rng)]
        right = {"wrong": 0.0, "sometimes": 0.7, "right": 1.0}[drafter]
        return [Oracle(tokens[request.id], vocab, right, rng)]

    speculation = SpeculationConfig(num_draft_tokens=most, adaptive=rng.random() < 0.3)
    if seed % 2 and name == "llama":  # verify chunks through the kernels of prompts, as on GPUs
        mock.patch.object(engine.runner, "_is_long", lambda plan: bool(plan.num_drafted)).start()
    speculate(engine, speculation, None if drafter == "configured" else drafters_of)
    hints = {id: DraftHints(prediction=found[:3] + found[4:]) for id, found in tokens.items()}
    drafted = answers(engine, requests(hints))
    assert drafted == plain
    speculator = engine.scheduler.speculator
    assert speculator is not None
    must_draft = not config["overlap"] and not speculation.adaptive  # which may measure that drafts cost more
    if must_draft and drafter == "right" and any(len(found) > 3 for found in tokens.values()):
        assert speculator.counts.accepted
    engine.close()


def test_right_drafts_need_a_step_for_several_tokens(model: SmallModel) -> None:
    engine = Engine(make_config(model.folder, max_model_len=256))
    greedy = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    plain = answers(engine, [Request(1, PROMPTS[0], greedy)])
    right = [token for token, *_ in plain[1]]
    before = engine.stats().steps
    speculate(engine, SpeculationConfig(num_draft_tokens=4, adaptive=False))
    hints = DraftHints(prediction=right)
    assert answers(engine, [Request(2, PROMPTS[0], greedy, hints=hints)])[2] == plain[1]
    # All but the last token of the prompt are cached: five tokens a step, from the first one on.
    assert engine.stats().steps - before == MAX_TOKENS // 5
    engine.close()
