"""Whatever an API writes into an answer is accepted in a history: of that API, and of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.anthropic.requests import MessagesBody
from router.api.generation.generation_request import Chat, GenerationRequest
from router.api.generation.output.formats import OutputFormats, ReasoningFormat, ToolFormat
from router.api.generation.params.validation import parse
from router.api.generation.text.chat_template import ChatTemplate
from router.api.generation.tools import Tool, ToolChoice, ToolUse
from router.api.openai.answers.chat_writer import ChatWriter
from router.api.openai.requests import ChatCompletionBody
from router.api.openai.responses_api.requests import ResponsesBody
from rpc.baton.v1 import router_pb2
from rpc.baton.v1.sampling_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP
from tests.unit.router.api.answers import (
    CHAT,
    ModelAnswer,
    chat_streamed,
    chat_whole,
    events_of,
    message_streamed,
    message_whole,
    response_streamed,
    response_whole,
)

TEMPLATES = {
    "without calls": "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}",
    "as JSON": """
{%- for m in messages -%}
<{{ m.role }}>{{ m.reasoning_content }}{{ m.content }}
{%- for call in m.tool_calls -%}
<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}</tool_call>
{%- endfor -%}
</>
{%- endfor -%}""",
    "by argument": """
{%- for m in messages -%}
<{{ m.role }}>{{ m.content }}
{%- for call in m.tool_calls -%}
<function={{ call.function.name }}>
{%- for name, value in call.function.arguments | items -%}
<{{ name }}>{{ value | tojson if value is mapping or value is sequence and value is not string else value }}
{%- endfor -%}
</function>
{%- endfor -%}
</>
{%- endfor -%}""",
}

USE = ToolUse((Tool("f"), Tool("g")))
HERMES = OutputFormats(ToolFormat.HERMES, ReasoningFormat.THINK)
HARMONY = OutputFormats(ToolFormat.HARMONY, ReasoningFormat.HARMONY)

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**18, 10**40) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
_ARGUMENTS = (
    st.dictionaries(st.text(max_size=4), _VALUES, max_size=3).map(json.dumps)
    | _VALUES.map(json.dumps)
    | st.sampled_from(["", " ", "{", '{"a": "\\ud800"}', '{"a": 1e999}', "{" * 300, '{"invalid_json": 1}'])
)
_PROSE = st.text(max_size=6)


def _hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def _mistral(name: str, arguments: str) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{arguments}"


def _llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}; '


def _harmony(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name}<|message|>{arguments}<|call|><|start|>assistant"


@st.composite
def answers(draw: st.DrawFn) -> ModelAnswer:
    """Reasoning, prose and calls in the order that a model likes, cut anywhere."""
    call: Callable[[str, str], str]
    formats, call, thought = draw(
        st.sampled_from(
            [
                (HERMES, _hermes, "<think>{}</think>"),
                (OutputFormats(ToolFormat.MISTRAL), _mistral, "{}"),
                (OutputFormats(ToolFormat.LLAMA_JSON), _llama, "{}"),
                (HARMONY, _harmony, "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"),
            ]
        )
    )
    choice = draw(st.sampled_from([ToolChoice.AUTO, ToolChoice.AUTO, ToolChoice.NAMED, ToolChoice.REQUIRED]))
    use = USE
    if choice is ToolChoice.NAMED:
        use, pieces = ToolUse((Tool("f"),), choice), [draw(_ARGUMENTS)]
    elif choice is ToolChoice.REQUIRED:
        calls = draw(st.lists(_ARGUMENTS, max_size=3))
        use = ToolUse(USE.tools, choice)
        pieces = ["[", ", ".join(f'{{"name": "f", "arguments": {text}}}' for text in calls), "]"]
    else:
        some = (
            st.builds(thought.format, _PROSE)
            | _PROSE
            | st.builds(call, st.sampled_from(["f", "g", "no such tool"]), _ARGUMENTS)
        )
        pieces = draw(st.lists(some, max_size=5))
    text = "".join(pieces)
    cut = draw(st.none() | st.integers(0, len(text)))
    return ModelAnswer(
        text.encode(errors="replace").decode()[:cut],
        formats,
        use,
        draw(st.sampled_from([FINISH_REASON_STOP, FINISH_REASON_LENGTH])),
        draw(st.sampled_from([(), ("a",), ('"', "}")])),
        tuple(draw(st.lists(st.integers(0, 60), max_size=4))),
    )


HI: dict[str, Any] = {"role": "user", "content": "hi"}


def in_chat(message: dict[str, Any]) -> GenerationRequest:
    """The request that goes on after this answer and results of its calls."""
    results = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": "x"}
        for call in message.get("tool_calls") or ()
    ]
    return _parsed(ChatCompletionBody, messages=[HI, message, *results, HI])


def in_responses(output: list[dict[str, Any]]) -> GenerationRequest:
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "x"}
        for item in output
        if item.get("type") == "function_call"
    ]
    return _parsed(ResponsesBody, input=[HI, *output, *results, HI])


def in_messages(blocks: list[dict[str, Any]]) -> GenerationRequest:
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "x"}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    messages = [HI, {"role": "assistant", "content": blocks}, {"role": "user", "content": results or "hi"}]
    return _parsed(MessagesBody, messages=messages, model="small", max_tokens=1)


def _parsed(kind: Any, **fields: Any) -> GenerationRequest:
    request: GenerationRequest = parse(kind, json.dumps(fields).encode()).to_request("r")
    return request


def items_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A chat's message as items of a response."""
    calls = message.get("tool_calls") or ()
    return [
        {"role": "assistant", "content": message.get("content") or ""},
        *({"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls),
    ]


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A chat's message as Anthropic's blocks: gateways parse the arguments, and give up where they cannot."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": message.get("content") or ""}]
    for call in message.get("tool_calls") or ():
        try:
            arguments = json.loads(call["function"]["arguments"])
        except (ValueError, RecursionError):
            arguments = {}
        if isinstance(arguments, dict):
            block = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
            blocks.append(block | {"input": json.loads(json.dumps(arguments, allow_nan=True))})
    return blocks


def message_of(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Anthropic's blocks as a chat's message."""
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    content = "".join(block["text"] for block in blocks if block["type"] == "text")
    return {"role": "assistant", "content": content or None} | ({"tool_calls": calls} if calls else {})


def prompts_of(request: GenerationRequest) -> list[str]:
    [chat] = request.prompts
    assert isinstance(chat, Chat)
    prompts = [ChatTemplate(source, {}).render(chat.messages, {}) for source in TEMPLATES.values()]
    for prompt in prompts:
        prompt.encode()  # as the tokenizer does
    return prompts


@given(answers())
def test_every_answer_comes_back_to_its_api_and_to_the_others(answer: ModelAnswer) -> None:
    for choice in (chat_whole(answer), chat_streamed(answer)):
        prompts_of(in_chat(choice["message"]))
        prompts_of(in_responses(items_of(choice["message"])))
        prompts_of(in_messages(blocks_of(choice["message"])))
    for response in (response_whole(answer), response_streamed(answer)):
        prompts_of(in_responses(response["output"]))
    for message in (message_whole(answer), message_streamed(answer)):
        prompts_of(in_messages(message["content"]))
        prompts_of(in_chat(message_of(message["content"])))


@given(answers())
def test_a_stream_ends_for_the_reason_of_the_whole_answer(answer: ModelAnswer) -> None:
    assert chat_whole(answer)["finish_reason"] == chat_streamed(answer)["finish_reason"]
    assert message_whole(answer)["stop_reason"] == message_streamed(answer)["stop_reason"]
    whole, streamed = response_whole(answer), response_streamed(answer)
    assert [item["status"] for item in whole["output"]] == [item["status"] for item in streamed["output"]]


def said(message: dict[str, Any]) -> Any:
    """What a chat's message says, without ids."""
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()
    ]
    return message["content"] or "", message.get("reasoning_content"), calls


def without_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`input`: clients that accumulate a stream have no place for arguments that are no object."""
    return [{name: block[name] for name in block.keys() - {"id", "call_id", "input"}} for block in blocks]


@given(answers())
def test_an_answer_is_the_fold_of_its_events(answer: ModelAnswer) -> None:
    assert said(chat_whole(answer)["message"]) == said(chat_streamed(answer)["message"])
    assert without_ids(response_whole(answer)["output"]) == without_ids(response_streamed(answer)["output"])
    assert without_ids(message_whole(answer)["content"]) == without_ids(message_streamed(answer)["content"])


def test_the_last_event_alone_has_what_ends_an_answer() -> None:
    """Also if one chunk becomes several events."""
    run, [_, chunk] = ModelAnswer(f"<think>so</think>Well. {_hermes('f', '{}')}", HERMES, USE).run()
    chunk.timings = router_pb2.Timings(ttft_s=1.0)
    events = list(events_of(ChatWriter(run, CHAT, None), [chunk]))  # type: ignore[arg-type]
    *others, last = [event for event in events if event["choices"]]
    assert len(others) > 3
    assert (last["timings"]["ttft_s"], last["choices"][0]["finish_reason"]) == (1.0, "tool_calls")
    assert all("timings" not in event and event["choices"][0]["finish_reason"] is None for event in others)


CUT = '{"text": "The world is a'


@pytest.mark.parametrize("arguments", ["", None, "null", "[]", "3", "{", CUT, "[" * 100_000, '{"a": NaN}'])
def test_arguments_that_are_no_object_are_accepted(arguments: str | None) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    [chat] = in_chat({"role": "assistant", "content": None, "tool_calls": [call]}).prompts
    assert isinstance(chat, Chat)
    found = chat.messages[1]["tool_calls"][0]["function"]["arguments"]
    assert found == ({} if arguments in ("", None, "null") else {"invalid_json": arguments})


def test_the_model_sees_what_it_had_written_of_a_call_that_was_cut_off() -> None:
    answer = ModelAnswer(_hermes("f", CUT)[: -len("}\n</tool_call>")], HERMES, USE, FINISH_REASON_LENGTH)
    for request in (
        in_chat(chat_whole(answer)["message"]),
        in_responses(response_whole(answer)["output"]),
        in_messages(message_whole(answer)["content"]),
    ):
        for prompt in prompts_of(request):
            assert "The world is a" in prompt


@pytest.mark.parametrize("arguments", ['{"n": 123456789012345678901234567890}', '{"n": "\\ud83d\\ude00"}'])
def test_numbers_and_characters_of_every_size_survive_anthropics_blocks(arguments: str) -> None:
    answer = ModelAnswer(_hermes("f", arguments), HERMES, USE)
    [block] = message_whole(answer)["content"]
    assert block["input"] == json.loads(arguments)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_reaches_the_template_under_either_name(field: str) -> None:
    message = {"role": "assistant", "content": "ok", field: "so", "reasoning_details": [{"text": "so"}]}
    assert "so" in prompts_of(in_chat(message))[1]


def test_reasoning_that_was_cut_off_is_not_lost() -> None:
    answer = ModelAnswer("<think>so", HERMES, USE, FINISH_REASON_LENGTH)
    assert "so" in prompts_of(in_responses(response_whole(answer)["output"]))[1]


@pytest.mark.parametrize("stop", ['"ab', "cd"])
@pytest.mark.parametrize("finish", [FINISH_REASON_STOP, FINISH_REASON_LENGTH])
def test_a_call_that_is_cut_off_is_not_announced(stop: str, finish: int) -> None:
    """A call is cut by a stop string, or by an early end of sequence."""
    text = _hermes("f", '{"x": "abcd"}')
    for answer in (
        ModelAnswer(text, HERMES, USE, finish, (stop,)),
        ModelAnswer(text[: text.index(stop)], HERMES, USE, finish),
    ):
        reasons = {chat_whole(answer)["finish_reason"], chat_streamed(answer)["finish_reason"]}
        assert reasons == {"stop" if answer.stops or finish == FINISH_REASON_STOP else "length"}
        assert message_whole(answer)["stop_reason"] != "tool_use"
        assert response_whole(answer)["output"][-1]["status"] == "incomplete"


def test_a_complete_call_is_announced() -> None:
    answer = ModelAnswer(_hermes("f", '{"x": "abcd"}'), HERMES, USE)
    assert chat_whole(answer)["finish_reason"] == chat_streamed(answer)["finish_reason"] == "tool_calls"
    assert message_whole(answer)["stop_reason"] == "tool_use"
    assert response_whole(answer)["output"][-1]["status"] == "completed"
