"""A sample of the table of classes; `python -m tests.integration.models.classes.table` computes all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.config import SpeculationConfig
from engine.loop.engine import Engine
from engine.model_config import general
from engine.model_config.draft_heads import drafts_as_head
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_impl import ModelImpl
from engine.model_config.model_spec import ModelSpec
from engine.modeling.general import describe
from engine.modeling.general.classes import build
from engine.modeling.general.interface import ATTENTION
from engine.speculation.kinds import DrafterKind
from tests.eagle_head import HeadShape
from tests.engine_config import engine_config
from tests.integration.models.classes.outcome import PROMPT, Outcome, Served, outcome
from tests.integration.models.classes.shrinking import classes, random_model, tiny_config
from tests.integration.models.test_every_architecture import finish, greedy, new_request

GENERAL = (
    "OPTForCausalLM",
    "CohereForCausalLM",
    "GemmaForCausalLM",
    "PhiForCausalLM",
    "MiMoV2FlashForCausalLM",
    "DbrxForCausalLM",
    "Ernie4_5_VLMoeForConditionalGeneration",
)
BOTH = ("LlamaForCausalLM", "Gemma2ForCausalLM", "GptOssForCausalLM", "MixtralForCausalLM")
REFUSED = {
    "MambaForCausalLM": "recurrent state",
    "BartForCausalLM": "an encoder",
    "BloomForCausalLM": "mask",
    "MptForCausalLM": "mask",
    "Lfm2ForCausalLM": "recurrent state",
    "MiniMaxM3VLForCausalLM": "block_indices",
}

HEAD = HeadShape(
    vocab_size=260,
    draft_vocab_size=260,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    max_position=512,
    layers=(0, 1, 2),
)


@pytest.fixture
def described_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general, "_described", describe.answer)


@pytest.mark.usefixtures("described_here")
@pytest.mark.parametrize("name", GENERAL)
def test_families_of_transformers_alone_answer_as_transformers_does(name: str, tmp_path: Path) -> None:
    found = outcome(tiny_config(classes()[name]), name, tmp_path)
    assert found == Outcome(Served.GENERALLY)


def test_one_class_for_text_images_and_audio_is_served_as_its_language_model(tmp_path: Path) -> None:
    name = "Gemma4UnifiedForConditionalGeneration"
    assert outcome(tiny_config(classes()[name]), name, tmp_path) == Outcome(Served.NATIVELY)


@pytest.mark.usefixtures("described_here")
@pytest.mark.parametrize("impl", [ModelImpl.BATON, ModelImpl.TRANSFORMERS])
@pytest.mark.parametrize("name", BOTH)
def test_families_of_both_answer_alike(name: str, impl: ModelImpl, tmp_path: Path) -> None:
    found = outcome(tiny_config(classes()[name]), name, tmp_path, impl)
    assert found.served is (Served.NATIVELY if impl is ModelImpl.BATON else Served.GENERALLY)


@pytest.mark.usefixtures("described_here")
@pytest.mark.parametrize("name", REFUSED)
def test_what_attention_does_not_hold_is_refused_by_name(name: str, tmp_path: Path) -> None:
    found = outcome(tiny_config(classes()[name]), name, tmp_path)
    assert found.served is Served.REFUSED
    assert REFUSED[name] in found.reason


def test_drafts_change_no_answer(tmp_path: Path) -> None:
    model = random_model(tiny_config("phi"))
    model.save_pretrained(tmp_path)
    prompt = PROMPT[:9] * 4
    answers = []
    for speculation in (None, SpeculationConfig(drafters=frozenset({DrafterKind.NGRAM}), num_draft_tokens=3)):
        config = engine_config(
            model_path=tmp_path, chunk_budget=16, page_size=4, max_model_len=128, speculation=speculation
        )
        engine, requests = Engine(config), [new_request(1, prompt), new_request(2, prompt[3:])]
        for request in requests:
            engine.submit(request)
        finish(engine)
        answers.append([request.output for request in requests])
    assert engine.stats().drafts.drafted > 0
    assert answers[0] == answers[1] == [greedy(model, prompt), greedy(model, prompt[3:])]


@pytest.mark.parametrize("name", ["PhiForCausalLM", "MixtralForCausalLM"])
def test_classes_with_and_without_experts_are_built_with_the_products_of_a_gpu(name: str) -> None:
    with torch.device("meta"):
        built = build(tiny_config(classes()[name]), ATTENTION, "grouped_mm")
    assert built.config._experts_implementation == "grouped_mm"


@pytest.mark.usefixtures("described_here")
def test_a_head_that_reads_hidden_states_is_refused_by_name() -> None:
    target = ModelSpec.from_config(tiny_config("opt").to_dict())
    head = ModelSpec.from_config(HEAD.config())
    with pytest.raises(UnsupportedModel, match="OPTForCausalLM shows no hidden states to an EAGLE-3 head"):
        drafts_as_head(target, head)


def test_a_process_of_its_own_describes_a_model_as_this_one_does() -> None:
    config = tiny_config("opt").to_dict()
    there = ModelSpec.from_config(config)
    assert there.general is not None
    assert there == ModelSpec.general_of(general.fields_of(describe.answer(json.dumps(config))), config)
