"""Quantized checkpoints that transformers' modules run: the model with the values that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from engine.loop.engine import Engine
from engine.model_config import general
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_impl import ModelImpl
from engine.model_config.model_spec import ModelSpec
from engine.modeling.general import describe
from tests.engine_config import engine_config
from tests.integration.models.classes.outcome import PROMPT
from tests.integration.models.test_every_architecture import finish, greedy, new_request
from tests.unit.engine.modeling.loader.quantizing import FP8_FORMATS, INT4_FORMATS, rewrite
from tests.unit.engine.modeling.loader.quantizing_floats import FP4_FORMATS
from tests.unit.engine.modeling.loader.test_quantized_weights import model as quantizable

FORMATS = {**FP8_FORMATS, **INT4_FORMATS, **FP4_FORMATS}


@pytest.fixture(autouse=True)
def _described_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general, "_described", describe.answer)


@pytest.mark.parametrize("format", FORMATS)
def test_layers_of_a_class_have_the_format_of_the_checkpoint(format: str, tmp_path: Path) -> None:
    quantizable("llama").save_pretrained(tmp_path / "source")
    rewrite(tmp_path / "source", tmp_path / "quantized", tmp_path / "dense", FORMATS[format])
    engine = Engine(
        engine_config(
            model_path=tmp_path / "quantized",
            chunk_budget=7,
            page_size=4,
            max_model_len=128,
            model_impl=ModelImpl.TRANSFORMERS,
        )
    )
    request = new_request(1, PROMPT)

    engine.submit(request)
    finish(engine)

    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "dense")
    assert request.output == greedy(expected, PROMPT)
    spec = ModelSpec.from_folder(tmp_path / "quantized", ModelImpl.TRANSFORMERS)
    assert spec.quantization == ModelSpec.from_folder(tmp_path / "quantized", ModelImpl.BATON).quantization
    engine.close()


def test_quantized_experts_are_refused_by_name(tmp_path: Path) -> None:
    quantizable("mixtral").save_pretrained(tmp_path / "source")
    rewrite(tmp_path / "source", tmp_path / "quantized", tmp_path / "dense", FORMATS["fp8 per tensor"])
    with pytest.raises(UnsupportedModel, match=r"quantized experts .* in one tensor"):
        ModelSpec.from_folder(tmp_path / "quantized", ModelImpl.TRANSFORMERS)
