"""A chat's messages, role by role: what OpenAI's reference allows is understood or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.api.generation.generation_request import Chat
from router.api.generation.params.validation import parse
from router.api.openai.requests import ChatCompletionBody
from router.errors import InvalidRequest

ASK: dict[str, Any] = {"role": "user", "content": "What is the weather in Bern?"}
CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
}
CALLING: dict[str, Any] = {"role": "assistant", "tool_calls": [CALL]}
SUNNY: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


def understood(*messages: Any) -> list[Any]:
    """The conversation that reaches the chat template."""
    body = json.dumps({"messages": messages}).encode()
    [prompt] = parse(ChatCompletionBody, body).to_request("chatcmpl-1").prompts
    assert isinstance(prompt, Chat)
    return list(prompt.messages)


def refusal_of(*messages: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        understood(*messages)
    return refusal.value


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
@pytest.mark.parametrize(
    ("content", "code"),
    [({}, "missing_required_parameter"), ({"content": None}, "invalid_value"), ({"content": []}, None)],
)
def test_every_role_but_the_assistant_needs_content(role: str, content: Any, code: str | None) -> None:
    more = {"tool_call_id": "call_1"} if role == "tool" else {}
    refusal = refusal_of(ASK, CALLING, {"role": role} | more | content)
    assert refusal.param == "messages.2.content"
    assert code in (None, refusal.code)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_content_is_text_or_text_parts(role: str) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert understood({"role": role, "content": ""}) == [{"role": role, "content": ""}]
    assert understood({"role": role, "content": parts}) == [{"role": role, "content": "one\ntwo"}]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "image_url", "image_url": {"link": "data:"}},
        {"type": "image_url", "image_url": {"url": "data:", "detail": "huge"}},
        {"type": "image_url", "uuid": "u" * 257},
        {"type": "video_url", "video_url": {"url": "data:"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "refusal", "refusal": "no"},
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "text", "text": "hi", "colour": "red"},
        {"type": "text", "text": "hi", "prompt_cache_breakpoint": 3},
        {"text": "hi"},
        "hi",
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_part_that_is_not_plain_text_is_refused_with_its_number(role: str, part: Any) -> None:
    refusal = refusal_of({"role": role, "content": [{"type": "text", "text": "a"}, part]})
    assert refusal.param == "messages.0.content"
    assert "Part 1 " in refusal.message


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ({"type": "input_audio"}, "is of type 'input_audio', and audio is not supported"),
        ({"type": "video_url"}, "is of type 'video_url', and videos are not supported"),
        ({"type": "text"}, "has no text"),
        ("hi", "is of type 'str'"),
    ],
)
def test_the_refusal_of_a_part_says_what_it_is(part: Any, what: str) -> None:
    refusal = refusal_of({"role": "user", "content": [part]})
    assert f"Part 0 {what}; only parts of type 'text' and 'image_url' are supported" in refusal.message


@pytest.mark.parametrize("nothing", [{}, {"content": None}, {"content": []}, {"tool_calls": []}])
def test_an_assistant_may_have_said_nothing(nothing: Any) -> None:
    assert understood(ASK, {"role": "assistant"} | nothing, ASK)[1] == {"role": "assistant", "content": ""}
    assert understood(ASK, CALLING, SUNNY)[1]["content"] == ""


def test_an_assistants_message_may_have_the_fields_of_other_servers() -> None:
    call = CALL | {"index": 0}
    extra = {
        "reasoning": "It rains.",
        "reasoning_details": [{"text": "so"}],
        "tool_calls": [call],
    }
    [_, message, _] = understood(ASK, {"role": "assistant", "content": ""} | extra, SUNNY)
    assert message["reasoning_content"] == "It rains."
    assert message.keys() == {"role", "content", "reasoning_content", "tool_calls"}
    assert message["tool_calls"][0].keys() == {"id", "type", "function"}


def test_an_answer_may_be_sent_back_as_the_client_got_it() -> None:
    """The openai package adds null for every field that an answer does not have."""
    nothing = ["refusal", "annotations", "audio", "function_call", "tool_calls", "name"]
    answer = {"role": "assistant", "content": "sunny"}
    assert understood(ASK, answer | dict.fromkeys(nothing), ASK) == [ASK, answer, ASK]
    assert understood(ASK, answer | {"tool_calls": [], "annotations": []}, ASK) == [ASK, answer, ASK]


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("refusal", "no", "unsupported_parameter"),
        ("audio", {"id": "a"}, "unsupported_parameter"),
        ("function_call", {"name": "f", "arguments": ""}, "unsupported_parameter"),
        ("annotations", [{"type": "url_citation"}], "invalid_value"),
        ("name", 3, "invalid_value"),
        ("tool_call_id", "call_1", "unknown_parameter"),
        ("colour", "red", "unknown_parameter"),
    ],
)
def test_a_field_of_the_assistant_that_would_be_ignored_is_refused(field: str, value: Any, code: str) -> None:
    refusal = refusal_of({"role": "assistant", "content": "hi", field: value})
    assert (refusal.param, refusal.code) == (f"messages.0.{field}", code)


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("field", ["tool_calls", "refusal", "audio", "tool_call_id", "colour"])
def test_other_roles_have_a_name_and_nothing_else(role: str, field: str) -> None:
    message = {"role": role, "content": "hi", "name": "Ada"}
    assert understood(message) == [message]
    refusal = refusal_of(message | {field: "x"})
    assert (refusal.param, refusal.code) == (f"messages.0.{field}", "unknown_parameter")


def test_the_arguments_of_a_call_reach_the_template_as_an_object() -> None:
    [_, calling, answer] = understood(ASK, CALLING, SUNNY)
    assert calling["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Bern"}}
    assert answer == SUNNY
    assert understood(ASK, CALLING, SUNNY | {"name": "weather"})[2] == SUNNY | {"name": "weather"}


@pytest.mark.parametrize(
    ("call", "place"),
    [
        ({"type": "custom"}, "0.type"),
        ({"id": None}, "0.id"),
        ({"colour": "red"}, "0.colour"),
        ({"function": {"name": "f"}}, "0.function.arguments"),
        ({"function": {"name": "f", "arguments": 3}}, "0.function.arguments"),
        ({"function": {"name": "f", "arguments": {"a": 1}}}, "0.function.arguments"),
    ],
)
def test_a_wrong_call_is_refused_by_its_place(call: Any, place: str) -> None:
    calling = {"role": "assistant", "tool_calls": [CALL | call]}
    assert refusal_of(ASK, calling, SUNNY).param == f"messages.1.tool_calls.{place}"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([ASK, SUNNY], "messages.1.tool_call_id"),
        ([ASK, CALLING, SUNNY | {"tool_call_id": "call_2"}], "messages.2.tool_call_id"),
        ([ASK, CALLING, SUNNY, SUNNY], "messages.3.tool_call_id"),
        ([ASK, CALLING, ASK], "messages.2"),
        ([ASK, CALLING], "messages.1"),
        ([ASK, {"role": "assistant", "tool_calls": [CALL, CALL]}], "messages.1.tool_calls"),
        ([ASK, CALLING, {"role": "tool", "content": "sunny"}], "messages.2.tool_call_id"),
        ([ASK, CALLING, SUNNY | {"name": 3}], "messages.2.name"),
    ],
)
def test_every_call_has_one_answer_before_the_next_message_of_another_role(messages: Any, param: str) -> None:
    assert refusal_of(*messages).param == param
