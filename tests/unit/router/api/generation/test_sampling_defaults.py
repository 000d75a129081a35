"""The sampling parameters of a model's generation_config.json, and what requests say instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.model_config.errors import UnsupportedModel
from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.sampling_defaults import OPENAI_DEFAULTS, SamplingDefaults, sampling_defaults
from router.config.choices import GenerationConfig
from rpc.baton.v1 import sampling_pb2

QWEN = {
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "min_p": 0.0,
    "repetition_penalty": 1.05,
    "eos_token_id": [1, 2],
    "transformers_version": "4.51.0",
}


def written(folder: Path, **config: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def resolved(defaults: SamplingDefaults, **options: Any) -> sampling_pb2.SamplingParams:
    return SamplingOptions(**options).resolve(
        prompt_tokens=4, room=60, seed=1, vocab_size=100, defaults=defaults
    )


def test_a_request_that_says_nothing_samples_as_the_model_does(tmp_path: Path) -> None:
    defaults = sampling_defaults(GenerationConfig.AUTO, written(tmp_path, **QWEN))
    sampling = resolved(defaults)
    assert sampling.temperature == pytest.approx(0.7)
    assert sampling.top_p == pytest.approx(0.8)
    assert sampling.top_k == 20
    assert sampling.repetition_penalty == pytest.approx(1.05)
    assert sampling.max_tokens == 60
    assert str(defaults) == "temperature 0.7, top_p 0.8, top_k 20, repetition_penalty 1.05"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0),
        ("temperature", 1.0),
        ("top_p", 1.0),
        ("top_k", 0),
        ("min_p", 0.25),
        ("repetition_penalty", 1.0),
        ("max_tokens", 7),
    ],
)
def test_what_a_request_says_always_wins(tmp_path: Path, name: str, value: float) -> None:
    defaults = SamplingDefaults.of_model(written(tmp_path, **QWEN, max_new_tokens=50))
    plain = resolved(defaults)
    said = resolved(defaults, **{name: value})
    assert getattr(said, name) == value != getattr(plain, name)
    setattr(said, name, getattr(plain, name))
    assert said == plain


def test_a_model_that_does_not_sample_is_greedy(tmp_path: Path) -> None:
    defaults = SamplingDefaults.of_model(written(tmp_path, do_sample=False, temperature=0.6))
    assert resolved(defaults).temperature == 0.0
    assert resolved(defaults, temperature=0.5).temperature == 0.5


def test_the_models_limit_of_tokens_is_the_default_and_no_cap(tmp_path: Path) -> None:
    defaults = SamplingDefaults.of_model(written(tmp_path, max_new_tokens=50))
    assert resolved(defaults).max_tokens == 50
    assert resolved(defaults, max_tokens=55).max_tokens == 55
    assert resolved(defaults, min_tokens=52).max_tokens == 52
    beyond = SamplingDefaults.of_model(written(tmp_path, max_new_tokens=5000))
    assert resolved(beyond).max_tokens == 60


@pytest.mark.parametrize("config", [None, {}, {"temperature": None, "top_k": None, "do_sample": None}])
def test_without_parameters_of_the_model_those_of_openai_apply(tmp_path: Path, config: Any) -> None:
    if config is not None:
        written(tmp_path, **config)
    assert sampling_defaults(GenerationConfig.AUTO, tmp_path) == OPENAI_DEFAULTS
    sampling = resolved(OPENAI_DEFAULTS)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.0, 1.0)


def test_the_flag_turns_them_off(tmp_path: Path) -> None:
    assert sampling_defaults(GenerationConfig.NONE, written(tmp_path, **QWEN)) == OPENAI_DEFAULTS


@pytest.mark.parametrize("wrong", [{"temperature": 9}, {"top_p": "x"}, {"max_new_tokens": 0}])
def test_a_value_that_cannot_be_is_told_with_file_and_flag(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(
        UnsupportedModel, match=f"generation_config.json: {min(wrong)}.*--generation-config none"
    ):
        SamplingDefaults.of_model(written(tmp_path, **wrong))
