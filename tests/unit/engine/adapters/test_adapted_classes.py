"""Adapters of models that run transformers' own modules (`--model-impl transformers`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from transformers import PreTrainedModel

from engine.errors import AdapterRefused
from engine.model_config import general
from engine.model_config.model_impl import ModelImpl
from engine.modeling.general import describe
from tests.integration.models.classes.shrinking import classes, random_model, tiny_config
from tests.unit.engine.adapters.adapted import COUNT, adapted_engine, answer, ask, load
from tests.unit.engine.adapters.peft_oracle import greedy, merged, prompts, save_adapter
from tests.unit.engine.modeling.models.references import reference

_MODELS: Final[dict[str, Callable[[], PreTrainedModel]]] = {
    "llama": lambda: reference("llama"),
    "qwen2 with experts": lambda: reference("qwen2 with experts"),
    "opt": lambda: random_model(tiny_config("opt")),
}


@pytest.fixture(autouse=True)
def described_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general, "_described", describe.answer)


@pytest.mark.parametrize("name", _MODELS)
def test_each_row_gets_the_answer_of_its_adapter(name: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    _MODELS[name]().save_pretrained(base)
    adapters = [save_adapter(base, tmp_path / f"a{k}", k, target_modules="all-linear") for k in range(2)]
    engine = adapted_engine(base, chunk_budget=7, model_impl=ModelImpl.TRANSFORMERS)
    digests = [b"", *(load(engine, adapter) for adapter in adapters)]
    asked = prompts(2, 19, 97)
    requests = [
        ask(10 * place + number, prompt, digest)
        for place, prompt in enumerate(asked)
        for number, digest in enumerate(digests)
    ]
    answer(engine, *requests)
    models = [merged(base, adapter) for adapter in (None, *adapters)]
    right = [greedy(model, prompt, COUNT) for prompt in asked for model in models]
    assert [request.output for request in requests] == right
    assert len({tuple(output) for output in right}) > 3, "the adapters change nothing"


def test_a_class_without_linear_layers_is_refused_at_the_start(tmp_path: Path) -> None:
    reference("gpt2").save_pretrained(tmp_path)
    with pytest.raises(AdapterRefused, match="no layer of GPT2LMHeadModel can take adapters"):
        adapted_engine(tmp_path, model_impl=ModelImpl.TRANSFORMERS)


def test_layers_that_are_not_applied_to_each_token_are_known() -> None:
    described = describe.describe(tiny_config(classes()["Qwen2VLForConditionalGeneration"]))
    layers = described["general"]["not_by_token"]
    assert "model.visual.blocks.0.attn.qkv" in layers
    assert not any("language_model" in path for path in layers)
