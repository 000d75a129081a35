from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.generation.params.sampled_body import SAMPLED
from router.api.generation.params.sampling_options import SamplingOptions, derive_seed
from router.api.openai.requests import ChatCompletionBody, CompletionBody
from router.errors import InvalidRequest
from rpc.baton.v1 import sampling_pb2
from tests.unit.router.bounds import BOUNDS, VOCAB


def resolve(room: int = 50, **options: Any) -> Any:
    given_options = SamplingOptions(**options)
    given_options.check(BOUNDS)
    return given_options.resolve(prompt_tokens=9, room=room, seed=7, vocab_size=VOCAB)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", -0.1),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -2),
        ("top_k", 1 << 40),
        ("min_p", 1.5),
        ("seed", 1 << 64),
        ("seed", -(1 << 63) - 1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("logprobs", 21),
        ("logprobs", -1),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("stop", ("",)),
        ("stop", ("x" * 1025,)),
        ("stop", ("x",) * 17),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", (VOCAB,)),
        ("stop_token_ids", (1,) * 257),
        ("logit_bias", {VOCAB: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(param: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        resolve(**{param: value})
    assert refusal.value.param == param
    assert param in refusal.value.message or param == "stop"


def test_defaults_are_openais() -> None:
    sampling = resolve()
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert (sampling.repetition_penalty, sampling.presence_penalty) == (1.0, 0.0)
    assert not sampling.HasField("logprobs")


def test_without_max_tokens_the_context_is_the_limit() -> None:
    assert resolve(room=33).max_tokens == 33


@pytest.mark.parametrize("param", ["max_tokens", "min_tokens"])
def test_more_tokens_than_the_context_holds_are_refused(param: str) -> None:
    assert resolve(room=33, **{param: 33})
    with pytest.raises(InvalidRequest) as refusal:
        resolve(room=33, **{param: 34})
    assert refusal.value.code == "context_length_exceeded"
    told = f"{param} is 34, but the prompt has 9 tokens, and the context holds 33 more."
    assert refusal.value.message == told


def test_max_tokens_are_cut_to_the_context_where_the_api_says_so() -> None:
    assert resolve(room=33, max_tokens=34, cut_max_tokens=True).max_tokens == 33
    assert resolve(room=33, max_tokens=32, cut_max_tokens=True).max_tokens == 32


def test_more_min_than_max_tokens_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens is 5, more than max_tokens, 4"):
        resolve(min_tokens=5, max_tokens=4)


def test_a_temperature_that_float32_cannot_divide_by_is_greedy() -> None:
    assert resolve(temperature=1e-30).temperature == 0.0


def test_top_p_zero_means_the_most_likely_token() -> None:
    sampling = resolve(top_p=0.0, top_k=40)
    assert (sampling.top_p, sampling.top_k) == (1.0, 1)


@pytest.mark.parametrize(("top_k", "sent"), [(-1, 0), (0, 0), (5, 5), (VOCAB, 0), (VOCAB + 1, 0)])
def test_a_top_k_that_keeps_every_token_is_off(top_k: int, sent: int) -> None:
    assert resolve(top_k=top_k).top_k == sent


@given(st.integers(-(1 << 63), (1 << 64) - 1), st.integers(0, 127), st.integers(0, 127))
def test_completions_of_one_prompt_have_different_seeds(seed: int, i: int, j: int) -> None:
    first, second = derive_seed(seed, i), derive_seed(seed, j)
    assert -(1 << 63) <= first < 1 << 63
    assert (first == second) == (i == j)


def test_the_first_completion_has_the_seed_that_was_asked_for() -> None:
    assert derive_seed(42, 0) == 42
    assert derive_seed(-1, 0) == derive_seed((1 << 64) - 1, 0) == -1


@pytest.mark.parametrize("name", sorted(SAMPLED))
def test_a_parameter_of_the_engine_is_declared_once_and_described(name: str) -> None:
    for body in (CompletionBody, ChatCompletionBody):
        assert body.model_fields[name].description
        assert name not in body.__annotations__
    assert name in sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name
