"""Fields and routes of vLLM and SGLang: harmless values pass, others are refused with what to use instead."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic.fields import FieldInfo

from router.api.apis import APIS
from router.api.fields import Refused
from router.api.generation.params.validation import parse
from router.api.http.foreign_routes import ADVICE, advice_on, advice_on_field
from router.api.openai.foreign_fields import ForeignChatFields, ForeignCompletionFields, ForeignFields
from router.api.openai.requests import ChatCompletionBody, CompletionBody, GenerationBody
from router.command.main import COMMANDS
from router.config.table import SETTINGS
from router.errors import InvalidRequest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}
SERVED = ["/", "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{name:path}", "/tokenize"]


def ask(fields: dict[str, Any]) -> GenerationBody:
    """A completion for its own fields; else a chat completion."""
    if fields.keys() & ForeignCompletionFields.model_fields.keys() - ForeignChatFields.model_fields.keys():
        return parse(CompletionBody, json.dumps(COMPLETION | fields).encode())
    return parse(ChatCompletionBody, json.dumps(CHAT | fields).encode())


def refused(field: FieldInfo) -> Refused:
    (mark,) = [mark for mark in field.metadata if isinstance(mark, Refused)]
    return mark


FIELDS = {
    name: refused(field)
    for each in (ForeignFields, ForeignChatFields)
    for name, field in each.model_fields.items()
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_foreign_field_passes_with_its_default_and_is_refused_with_the_reason(name: str) -> None:
    for value in (None, *FIELDS[name].neutral):
        assert getattr(ask({name: value}), name) is None
    with pytest.raises(InvalidRequest) as caught:
        ask({name: "something else"})
    error = caught.value
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert FIELDS[name].reason in str(error)


@pytest.mark.parametrize(
    "harmless",
    [
        {"include_reasoning": True, "separate_reasoning": True, "add_special_tokens": False},
        {"spaces_between_special_tokens": True, "include_stop_str_in_output": False, "bad_words": []},
        {"use_beam_search": False, "length_penalty": 1.0, "early_stopping": False, "echo": False},
        {"length_penalty": 1, "no_stop_trim": False, "documents": [], "kv_transfer_params": {}},
        {"allowed_token_ids": None, "cache_salt": None, "truncate_prompt_tokens": None, "rid": None},
    ],
)
def test_what_clients_of_other_servers_send_by_default_has_no_effect(harmless: dict[str, Any]) -> None:
    plain = ask({}).to_request("chatcmpl-1")
    assert ask(harmless).to_request("chatcmpl-1") == plain


@pytest.mark.parametrize("value", [0, 1, "false", [False]])
def test_a_value_of_another_type_is_not_taken_for_the_default(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="use_beam_search: not supported by this server"):
        ask({"use_beam_search": value})


def test_special_tokens_are_those_that_each_route_adds_by_default() -> None:
    parse(CompletionBody, json.dumps(COMPLETION | {"add_special_tokens": True}).encode())
    for body, asked, value in ((CompletionBody, COMPLETION, False), (ChatCompletionBody, CHAT, True)):
        with pytest.raises(InvalidRequest, match="add_special_tokens: not supported"):
            parse(body, json.dumps(asked | {"add_special_tokens": value}).encode())


def test_advice_names_fields_flags_and_commands_that_exist() -> None:
    texts = [*ADVICE.values(), *(mark.reason for mark in FIELDS.values())]
    flags = {setting.flag for setting in SETTINGS.values()}
    for text in texts:
        assert set(re.findall(r"--[a-z][a-z-]+", text)) <= flags, text
        for command in re.findall(r"`router (\w+)", text):
            assert command in COMMANDS or command == "batch", text
    known = ChatCompletionBody.model_fields | CompletionBody.model_fields
    for mark in FIELDS.values():
        for word in re.findall(r"use ([a-z]+_[a-z_]+)", mark.reason):
            assert word in known, mark.reason
            assert word not in FIELDS, mark.reason


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("lora_path", " It is a field of POST /v1/chat/completions."),
        ("bad_words", " POST /v1/chat/completions refuses it too: use logit_bias: -100"),
        ("min_p", " It is a field of POST /v1/chat/completions."),
        ("instructions", " It is a field of POST /v1/responses."),
        ("max_tokens.0", ""),
        ("nonsense", ""),
    ],
)
def test_a_field_of_another_api_is_refused_with_where_it_is(name: str, advice: str) -> None:
    found = advice_on_field(name, APIS)
    assert found.startswith(advice) if advice else not found


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/models", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
    ],
)
def test_a_base_url_with_another_prefix_is_answered_with_the_right_path(path: str, meant: str) -> None:
    assert advice_on(path, SERVED) == f" Did you mean {meant}?"


@pytest.mark.parametrize("path", ["/v1/nothing", "/", "/chatcompletions", "/v1/models2"])
def test_nothing_is_guessed_for_other_paths(path: str) -> None:
    assert advice_on(path, SERVED) == ""


def test_routes_of_other_servers_are_answered_with_what_to_use() -> None:
    assert "/v1/completions" in advice_on("/api/generate", SERVED)
    assert "/reset_prefix_cache" in advice_on("/reset_mm_cache", SERVED)
