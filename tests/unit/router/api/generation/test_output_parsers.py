"""Parsers of answers: calls and reasoning are found however the text is cut into pieces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.api.generation.output.call_formats import CALL_FORMATS, ToolFormat
from router.api.generation.output.forced import FirstCallOnly, NamedCallParser, RequiredCallsParser
from router.api.generation.output.harmony import HarmonyParser
from router.api.generation.output.llama import LlamaJsonParser
from router.api.generation.output.mistral import MistralParser
from router.api.generation.output.parts import Arguments, Call, Content, OutputParser, Part, ReasoningPart
from router.api.generation.output.reasoning import ReasoningParser
from router.api.generation.output.sections import SectionParser


def hermes() -> SectionParser:
    return SectionParser(CALL_FORMATS[ToolFormat.HERMES])


PARSERS: dict[str, Callable[[], OutputParser]] = {
    "hermes": hermes,
    "llama": lambda: LlamaJsonParser({"f", "weather"}),
    "mistral": MistralParser,
    "named": lambda: NamedCallParser("f"),
    "required": RequiredCallsParser,
    "first": lambda: FirstCallOnly(hermes()),
    "harmony": lambda: HarmonyParser(calls=True),
    "reasoning": ReasoningParser,
    "reasoning, opened by the template": lambda: ReasoningParser(inside=True),
    "reasoning, then calls": lambda: ReasoningParser(hermes()),
}
BERN = '{"city": "Bern", "days": [1, {"a": "}\\"{"}]}'
PIECES = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "<think>",
    "<|channel|>analysis<|message|>",
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
    "<|end|><|start|>assistant",
    "</think>",
    '{"name": "f", "arguments": {"a": "}"}}',
    '{"name": "weather", "parameters": {}}',
    '{"parameters": {"x": [1, 2]}, "name": "f"}',
    '{"arguments": "{\\"a\\": 1}", "name": "f"}',
    '{"name": "f", "arguments": ',
    '"f"',
    "f",
    "{",
    "}",
    "[",
    "]",
    ",",
    ";",
    ":",
    '"',
    "\\",
    " ",
    "\n",
    "12",
    "null",
    "<tool",
    "</thi",
    "hello",
]


def merged(parts: Sequence[Part]) -> list[Part]:
    """Neighbours of one kind as one."""
    whole: list[Part] = []
    for part in parts:
        match whole[-1] if whole else None, part:
            case Content(before), Content(text):
                whole[-1] = Content(before + text)
            case ReasoningPart(before), ReasoningPart(text):
                whole[-1] = ReasoningPart(before + text)
            case Arguments(index, before), Arguments(other, text) if index == other:
                whole[-1] = Arguments(index, before + text)
            case _:
                whole.append(part)
    return whole


def parsed(name: str, *pieces: str) -> list[Part]:
    return whole(PARSERS[name](), *pieces)


def whole(parser: OutputParser, *pieces: str) -> list[Part]:
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return merged(parts + parser.finish())


def calls(*named: tuple[str, str]) -> list[Part]:
    return [
        part
        for index, (name, arguments) in enumerate(named)
        for part in (Call(index, name), Arguments(index, arguments))
    ]


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=60)
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.data())
def test_any_cutting_of_the_text_gives_the_same_parts(name: str, text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert parsed(name, *pieces) == parsed(name, text) == parsed(name, *text)


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral", "reasoning"])
@given(st.text(max_size=40))
def test_text_without_calls_is_content_to_the_last_space(name: str, text: str) -> None:
    assert parsed(name, *text) == ([Content(text)] if text else [])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f'<tool_call>\n{{"name": "weather", "arguments": {BERN}}}\n</tool_call>', calls(("weather", BERN))),
        (
            'Wait.\n\n<tool_call>{"name": "a", "arguments": {}}</tool_call>\n'
            '<tool_call>{"arguments": {"x": 1}, "name": "b"}</tool_call>\n',
            [Content("Wait."), *calls(("a", "{}"), ("b", '{"x": 1}'))],
        ),
        ('<tool_call>{"name": "a"}</tool_call>', calls(("a", "{}"))),
        ('<tool_call>{"name": "a", "arguments": null}</tool_call>', calls(("a", "{}"))),
        ('<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}', calls(("a", '{"x": 1}'))),
        ('<tool_call>{"name": "a", "arguments": {"x', calls(("a", '{"x'))),
        ("<tool_call>not JSON</tool_call>", [Content("<tool_call>not JSON</tool_call>")]),
        ('<tool_call>{"name": 3, "arguments": {}}', [Content('<tool_call>{"name": 3, "arguments": {}}')]),
        ("1 < 2 <tool", [Content("1 < 2 <tool")]),
    ],
)
def test_hermes_calls_are_marked_by_tags(text: str, parts: list[Part]) -> None:
    assert parsed("hermes", *text) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f'{{"name": "weather", "parameters": {BERN}}}', calls(("weather", BERN))),
        ('<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', calls(("f", "{}"))),
        (
            '{"name": "f", "parameters": {}}; {"name": "weather", "parameters": {"a": 1}}',
            calls(("f", "{}"), ("weather", '{"a": 1}')),
        ),
        ('{"name": "Ada", "age": 36}', [Content('{"name": "Ada", "age": 36}')]),
        ('  {"answer": 3}', [Content('  {"answer": 3}')]),
        ("It is {sunny}.", [Content("It is {sunny}.")]),
        ('{"name": "f", "param', [Content('{"name": "f", "param')]),
    ],
)
def test_llama_calls_are_objects_that_name_a_tool(text: str, parts: list[Part]) -> None:
    assert parsed("llama", *text) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            '[TOOL_CALLS][{"name": "a", "arguments": {"x": "]"}}, {"name": "b", "arguments": {}}]',
            calls(("a", '{"x": "]"}'), ("b", "{}")),
        ),
        (
            'Wait.[TOOL_CALLS]a[CALL_ID]123456789[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}',
            [Content("Wait."), *calls(("a", '{"x": 1}'), ("b", "{}"))],
        ),
        ('[TOOL_CALLS]a{"x": 1}', calls(("a", '{"x": 1}'))),
        ("[TOOL", [Content("[TOOL")]),
    ],
)
def test_mistral_calls_follow_a_control_token(text: str, parts: list[Part]) -> None:
    assert parsed("mistral", *text) == parts


def test_forced_calls_are_plain_json() -> None:
    assert parsed("named", *BERN) == calls(("f", BERN))
    text = json.dumps([{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}])
    assert parsed("required", *text) == calls(("a", '{"x": 1}'), ("b", "{}"))


def test_without_parallel_calls_only_the_first_is_passed_on() -> None:
    text = '<tool_call>{"name": "a", "arguments": {}}</tool_call>' * 2
    assert parsed("first", *text) == calls(("a", "{}"))


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("reasoning", "<think>\nhm\n</think>\n\nYes.\n", [ReasoningPart("hm"), Content("Yes.\n")]),
        ("reasoning", "Yes <think>", [Content("Yes <think>")]),
        ("reasoning", "<think>hm </thi", [ReasoningPart("hm </thi")]),
        ("reasoning", "<think></think>Yes", [Content("Yes")]),
        ("reasoning, opened by the template", "hm\n</think>\nYes", [ReasoningPart("hm"), Content("Yes")]),
        (
            "reasoning, then calls",
            '<think>a <tool_call> b</think><tool_call>{"name": "f", "arguments": {}}</tool_call>',
            [ReasoningPart("a <tool_call> b"), *calls(("f", "{}"))],
        ),
    ],
)
def test_reasoning_comes_before_the_answer(name: str, text: str, parts: list[Part]) -> None:
    assert parsed(name, *text) == parts


HARMONY = (
    "<|channel|>analysis<|message|>They ask < a city.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Looking it up.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    + BERN
    + "<|call|>"
)


def test_harmonys_channels_are_reasoning_content_and_calls() -> None:
    expected = [
        ReasoningPart("They ask < a city."),
        Content("Looking it up."),
        Call(0, "weather"),
        Arguments(0, BERN),
    ]
    assert whole(HarmonyParser(calls=True), HARMONY) == expected
    without_tools = whole(HarmonyParser(calls=False), HARMONY)
    assert without_tools == [ReasoningPart("They ask < a city."), Content("Looking it up." + BERN)]
    assert whole(HarmonyParser(calls=True, reasoning=False), HARMONY)[0] == Content(
        "They ask < a city.Looking it up."
    )


def test_harmonys_recipient_may_stand_before_the_channel() -> None:
    text = " to=functions.f<|channel|>commentary<|message|>{}"
    assert whole(HarmonyParser(calls=True), text) == [Call(0, "f"), Arguments(0, "{}")]


def test_an_answer_that_knows_nothing_of_harmony_is_content() -> None:
    assert whole(HarmonyParser(calls=True), "Hello.") == [Content("Hello.")]


@pytest.mark.parametrize("cut", [HARMONY.index("<|end|>"), HARMONY.index("Looking"), len(HARMONY)])
def test_harmonys_reasoning_is_over_where_another_message_begins(cut: int) -> None:
    parser = HarmonyParser(calls=True)
    parser.feed(HARMONY[:cut])
    assert parser.has_reasoning
    assert parser.has_answer == (cut > HARMONY.index("<|end|>"))
