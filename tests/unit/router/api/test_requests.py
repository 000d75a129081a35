from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from router.api.anthropic.requests import MessagesBody
from router.api.generation.generation_request import Chat, GenerationRequest
from router.api.generation.params.validation import RequestModel, parse, require_few_parts
from router.api.openai.requests import ChatCompletionBody, CompletionBody
from router.api.openai.responses_api.requests import ResponsesBody
from router.api.openai.tokenize import DetokenizeBody, TokenizeBody
from router.errors import InvalidRequest
from tests.unit.router.bounds import BOUNDS


def completion(**fields: Any) -> GenerationRequest:
    return parse(CompletionBody, json.dumps({"prompt": "hi"} | fields).encode()).to_request("cmpl-1")


def chat(**fields: Any) -> GenerationRequest:
    body = {"messages": [{"role": "user", "content": "hi"}]} | fields
    return parse(ChatCompletionBody, json.dumps(body).encode()).to_request("cmpl-1")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", ["text"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_a_prompt_comes_in_four_shapes(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts == prompts


def test_a_default_of_16_tokens_is_cut_to_the_context_and_a_given_number_is_not() -> None:
    room = {"prompt_tokens": 251, "room": 5, "seed": 1, "vocab_size": 100}
    assert completion().options.resolve(**room).max_tokens == 5
    with pytest.raises(InvalidRequest, match="max_tokens is 16"):
        completion(max_tokens=16).options.resolve(**room)


def test_no_alternatives_may_be_asked_for_without_logprobs() -> None:
    assert chat(top_logprobs=0, logprobs=False).options.logprobs is None
    with pytest.raises(InvalidRequest, match="top_logprobs"):
        chat(top_logprobs=1, logprobs=False)


@pytest.mark.parametrize(
    "prompt", [None, 3, True, [], [True], [1, "a"], ["a", [1]], [[1, "a"]], [1.0], {"a": 1}]
)
def test_a_prompt_in_no_known_shape_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        completion(prompt=prompt)
    assert refusal.value.param == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"a\x00"}',
        b"[" * 100_000,
        b'{"prompt":' + b"[" * 100_000,
        b'{"prompt":"a","seed":' + b"9" * 10_000 + b"}",
        b'{"prompt":"a","temperature":1e999}',
        b'{"prompt":"a","temperature":NaN}',
        b'{"prompt":"a","temperature":Infinity}',
    ],
)
def test_what_is_not_a_json_object_of_finite_numbers_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(CompletionBody, body)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("max_tokens", "5"),
        ("max_tokens", 5.5),
        ("max_tokens", True),
        ("temperature", "1"),
        ("temperature", True),
        ("n", []),
        ("stop", 3),
        ("stop", [3]),
        ("seed", 1.5),
        ("stream", "yes"),
        ("stop_token_ids", ["a"]),
        ("ignore_eos", 1),
        ("timeout", 0),
        ("timeout", -1),
        ("model", 3),
    ],
)
def test_a_wrong_type_is_refused_by_name(param: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        completion(**{param: value})
    assert refusal.value.param is not None
    assert refusal.value.param.split(".")[0] == param


@pytest.mark.parametrize(
    ("param", "value", "code"),
    [
        ("temprature", 0, "unknown_parameter"),
        ("tools", [{"type": "function"}], "unknown_parameter"),
        ("suffix", "the end", "unsupported_parameter"),
        ("best_of", 3, "unsupported_parameter"),
    ],
)
def test_a_parameter_that_would_be_ignored_is_refused(param: str, value: Any, code: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        completion(**{param: value})
    assert (refusal.value.param, refusal.value.code) == (param, code)


def test_a_stream_option_that_would_be_ignored_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        completion(stream=True, stream_options={"include_usage": True, "include_cost": True})
    assert (refusal.value.param, refusal.value.code) == ("stream_options.include_cost", "unknown_parameter")


def test_parameters_that_ask_for_nothing_are_let_through() -> None:
    neutral = {
        "logit_bias": {},
        "response_format": {"type": "text"},
        "suffix": None,
        "best_of": 1,
    }
    bookkeeping = {"user": "me", "metadata": {"a": "b"}, "store": True}
    assert completion(**neutral, **bookkeeping).options == completion().options


def test_null_means_the_default() -> None:
    names = ["max_tokens", "temperature", "top_p", "n", "seed", "stop", "stream", "top_k", "logprobs", "user"]
    assert completion(**dict.fromkeys(names)).options == completion().options


def test_completions_have_sixteen_tokens_unless_asked_and_chats_as_many_as_fit() -> None:
    assert completion().options.max_tokens == 16
    assert chat().options.max_tokens is None
    assert chat(max_completion_tokens=7).options.max_tokens == 7
    assert chat(max_tokens=7, max_completion_tokens=7).options.max_tokens == 7
    with pytest.raises(InvalidRequest, match="differ"):
        chat(max_tokens=7, max_completion_tokens=8)


def test_a_stop_may_be_one_or_several() -> None:
    assert completion(stop="a").options.stop == ("a",)
    assert completion(stop=["a", "b"]).options.stop == ("a", "b")


def test_logprobs_are_a_number_for_completions_and_a_switch_for_chats() -> None:
    assert completion(logprobs=3).options.logprobs == 3
    assert chat(logprobs=True).options.logprobs == 0
    assert chat(logprobs=True, top_logprobs=4).options.logprobs == 4
    assert chat(logprobs=False).options.logprobs is None
    with pytest.raises(InvalidRequest, match="top_logprobs"):
        chat(top_logprobs=4)


def test_text_parts_of_a_message_become_lines() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    [prompt] = chat(messages=[{"role": "user", "content": parts}]).prompts
    assert isinstance(prompt, Chat)
    assert prompt.messages[0]["content"] == "one\ntwo"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hi", "messages"),
        (["hi"], "messages.0"),
        ([{"content": "hi"}], "messages.0.role"),
        ([{"role": "robot", "content": "hi"}], "messages.0.role"),
        ([{"role": "user", "content": 3}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages.0.content"),
        ([{"role": "function", "name": "f", "content": "1"}], "messages.0.role"),
    ],
)
def test_a_wrong_message_is_refused_by_its_place(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        chat(messages=messages)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": 1}},
        {"prompt_logprobs": 1, "stream": True},
        {"timings": True, "n": 2},
        {"timings": True, "prompt": ["a", "b"]},
    ],
)
def test_parameters_that_do_not_go_together_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        completion(**fields)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [*CompletionBody.model_fields, *ChatCompletionBody.model_fields, "tools", "user", "x"]
)


@given(st.dictionaries(FIELDS, ANYTHING, max_size=5), st.sampled_from([CompletionBody, ChatCompletionBody]))
def test_anything_is_either_understood_or_refused(fields: dict[str, Any], kind: Any) -> None:
    valid = {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}
    base = {name: value for name, value in valid.items() if name in kind.model_fields}
    with suppress(InvalidRequest):
        parse(kind, json.dumps(base | fields).encode()).to_request("cmpl-1").options.check(BOUNDS)


@pytest.mark.parametrize(
    ("kind", "field", "item"),
    [
        (ChatCompletionBody, "messages", 0),
        (ChatCompletionBody, "messages", {}),
        (ChatCompletionBody, "stop", 0),
        (ResponsesBody, "input", 0),
        (ResponsesBody, "include", 0),
        (MessagesBody, "messages", {}),
        (TokenizeBody, "messages", {}),
        (DetokenizeBody, "tokens", "a"),
        (CompletionBody, "stop_token_ids", "a"),
    ],
)
def test_validation_ends_at_the_first_wrong_item(kind: type[RequestModel], field: str, item: Any) -> None:
    body = json.dumps({field: [item] * 100})
    with pytest.raises(ValidationError) as refusal:
        kind.model_validate_json(body)
    places = [error["loc"] for error in refusal.value.errors() if error["loc"][0] == field]
    assert {step for place in places for step in place if isinstance(step, int)} <= {0}


@pytest.mark.parametrize("field", ["logit_bias", "metadata"])
def test_a_dictionary_that_is_too_large_is_refused_before_its_values(field: str) -> None:
    kind = CompletionBody if field == "logit_bias" else ResponsesBody
    with pytest.raises(InvalidRequest, match="at most"):
        parse(kind, json.dumps({field: {f"k{i}": [] for i in range(5000)}} | _NEEDED[kind]).encode())


def test_of_many_unknown_fields_only_the_number_is_said() -> None:
    with pytest.raises(InvalidRequest, match="5001 fields or values") as refusal:
        completion(**{f"k{i}": 0 for i in range(5001)})
    assert refusal.value.param is None


_NEEDED: dict[type[RequestModel], Any] = {CompletionBody: {"prompt": "hi"}, ResponsesBody: {"input": "hi"}}


PARTS = '{"a":"\\"{[:,{[:,","b":[1,2,3,4,5,6,7,8,9]},'


def test_the_parts_of_a_large_body_are_counted_outside_of_strings() -> None:
    """An object, two fields, a list, and ten commas: four parts, and 1.25 for the commas."""
    require_few_parts(f"[{PARTS * 19_000}0]".encode())
    with pytest.raises(InvalidRequest, match="The body has more than 100000 parts"):
        require_few_parts(f"[{PARTS * 19_100}0]".encode())


@pytest.mark.parametrize(
    "body", [b'"' + b'\\"' * 200_000, b'{"a":"' + b"{[:" * 100_000, b'"\\' * 50_000, b'"' * 99_999]
)
def test_a_body_that_ends_within_a_string_is_left_to_the_parser(body: bytes) -> None:
    require_few_parts(body)
