"""Calls as chat templates and model cards have them, however the text is cut."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.api.generation.output.answer_tags import TaggedAnswer
from router.api.generation.output.call_formats import CALL_FORMATS, ToolFormat, taught_by
from router.api.generation.output.formats import OutputFormats
from router.api.generation.output.parts import Arguments, Call, Content, OutputParser, Part
from router.api.generation.output.reasoning import ReasoningFormat
from router.api.generation.tools import Tool, ToolUse
from tests.unit.router.api.generation.published_calls import PUBLISHED, TWO
from tests.unit.router.api.generation.test_output_parsers import merged

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "unit": {"enum": ["C", "F"]},
        "area": {"$ref": "#/$defs/area"},
        "code": {"type": "string"},
    },
    "$defs": {"area": {"type": "object"}},
}
TOOLS = (Tool("weather", parameters=SCHEMA), Tool("f"))


def parser(format: ToolFormat) -> OutputParser:
    found = OutputFormats(format).parser(ToolUse(TOOLS), "")
    assert found is not None
    return found


def parsed(format: ToolFormat, *pieces: str) -> list[Part]:
    reading = parser(format)
    return merged([part for piece in pieces for part in reading.feed(piece)] + reading.finish())


def calls(parts: list[Part]) -> list[tuple[str, Any]]:
    """Name and arguments of each call; the arguments must be JSON."""
    names = {part.index: part.name for part in parts if isinstance(part, Call)}
    texts = {part.index: part.text for part in parts if isinstance(part, Arguments)}
    assert list(names) == list(range(len(names)))
    return [(name, json.loads(texts[index])) for index, name in names.items()]


def text_of(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


def test_every_format_is_published_here_and_every_one_in_sections_has_a_table() -> None:
    assert PUBLISHED.keys() == set(ToolFormat) - {ToolFormat.HARMONY}
    own = {ToolFormat.LLAMA_JSON, ToolFormat.MISTRAL, ToolFormat.PYTHONIC}
    assert CALL_FORMATS.keys() == PUBLISHED.keys() - own


@pytest.mark.parametrize("format", PUBLISHED, ids=lambda format: format.value)
def test_calls_are_read_as_they_are_published(format: ToolFormat) -> None:
    text = PUBLISHED[format]
    whole = parsed(format, text)
    assert calls(whole) == TWO
    assert not text_of(whole).strip()
    assert parsed(format, *text) == whole
    for cut in range(1, len(text)):
        assert parsed(format, text[:cut], text[cut:]) == whole


@pytest.mark.parametrize("format", CALL_FORMATS, ids=lambda format: format.value)
def test_content_around_calls_is_kept(format: ToolFormat) -> None:
    parts = parsed(format, *f"Let me see.\n\n{PUBLISHED[format]}")
    assert parts[0] == Content("Let me see.")
    assert calls(parts) == TWO


@pytest.mark.parametrize("format", PUBLISHED, ids=lambda format: format.value)
@settings(max_examples=25)
@given(st.text(max_size=30))
def test_text_without_calls_is_content(format: ToolFormat, text: str) -> None:
    assert text_of(parsed(format, *text)) == text


@pytest.mark.parametrize("format", PUBLISHED, ids=lambda format: format.value)
@settings(max_examples=40)
@given(st.data())
def test_any_cutting_of_broken_text_gives_the_same_parts(format: ToolFormat, data: st.DataObject) -> None:
    pieces = [PUBLISHED[format][a:b] for a, b in itertools.pairwise(sorted({0, 8, 20, 33, 47, 70, 10**4}))]
    text = "".join(data.draw(st.lists(st.sampled_from([*pieces, "x", "\n", "<", "["]), max_size=8)))
    cuts = [0, *data.draw(st.lists(st.integers(0, len(text)), max_size=5).map(sorted)), len(text)]
    assert parsed(format, *(text[a:b] for a, b in itertools.pairwise(cuts))) == parsed(format, *text)


@pytest.mark.parametrize("format", PUBLISHED, ids=lambda format: format.value)
def test_arguments_begin_json_wherever_the_answer_ends(format: ToolFormat) -> None:
    """What was streamed of a call that is cut off is the beginning of valid JSON, or nothing."""
    text = PUBLISHED[format]
    for cut in range(len(text)):
        for part in parsed(format, text[:cut]):
            if isinstance(part, Arguments):
                json.JSONDecoder().raw_decode(_completed(part.text))


def _completed(text: str) -> str:
    """The text with what it lacks: the end of a string, a value, and brackets."""
    for end in ("", '"', '":0', "0", "null", ":0", '"":0'):
        for brackets in ("", "}", "]}", "}}"):
            try:
                json.loads(text + end + brackets)
            except ValueError:
                continue
            return text + end + brackets
    raise AssertionError(text)


TAGGED: dict[ToolFormat, tuple[str, str]] = {
    ToolFormat.QWEN3_CODER: (
        "<tool_call>\n<function=weather>\n<parameter={}>\n",
        "\n</parameter>\n</function>\n</tool_call>",
    ),
    ToolFormat.SEED_OSS: (
        "<seed:tool_call><function=weather><parameter={}>",
        "</parameter></function></seed:tool_call>",
    ),
    ToolFormat.GLM: (
        "<tool_call>weather<arg_key>{}</arg_key><arg_value>",
        "</arg_value></tool_call>",
    ),
    ToolFormat.HUNYUAN3: (
        "<tool_calls><tool_call>weather<tool_sep><arg_key>{}</arg_key><arg_value>",
        "</arg_value></tool_call></tool_calls>",
    ),
    ToolFormat.LONGCAT_TAGS: (
        "<longcat_tool_call>weather<longcat_arg_key>{}</longcat_arg_key><longcat_arg_value>",
        "</longcat_arg_value></longcat_tool_call>",
    ),
    ToolFormat.MINIMAX_M2: (
        '<minimax:tool_call><invoke name="weather"><parameter name="{}">',
        "</parameter></invoke></minimax:tool_call>",
    ),
}


def argument(format: ToolFormat, key: str, value: str) -> Any:
    before, after = TAGGED[format]
    text = before.format(key) + value + after
    (call,) = calls(parsed(format, *text))
    assert calls(parsed(format, text)) == [call]
    return call[1][key]


@pytest.mark.parametrize("format", TAGGED, ids=lambda format: format.value)
@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("days", "3", 3),
        ("days", "many", "many"),
        ("days", "123456789012345678901234567890", 123456789012345678901234567890),
        ("exact", "true", True),
        ("exact", "False", False),
        ("note", "null", None),
        ("note", "None", None),
        ("note", "5", "5"),
        ("unit", "C", "C"),
        ("area", '{"a": [1, {"b": "}"}]}', {"a": [1, {"b": "}"}]}),
        ("area", "{'a': True}", {"a": True}),
        ("city", "5", "5"),
        ("city", "true", "true"),
        ("city", ' "quoted" ', ' "quoted" '),
        ("city", "Zürich 北京 \U0001f600 \\ \t", "Zürich 北京 \U0001f600 \\ \t"),
        ("code", "def f():\n    return 1\n\n\nprint(f())", "def f():\n    return 1\n\n\nprint(f())"),
        ("code", "a </parameter> b </arg_value> c <parameter", "a </parameter> b </arg_value> c <parameter"),
        ("unknown", "7", 7),
        ("unknown", "NaN", "NaN"),
        ("unknown", "some words", "some words"),
        ("unknown", "[1, 2]", [1, 2]),
    ],
)
def test_values_have_the_type_of_the_tools_schema(
    format: ToolFormat, key: str, written: str, value: object
) -> None:
    assert argument(format, key, written) == value


@pytest.mark.parametrize("format", TAGGED, ids=lambda format: format.value)
@given(st.text(max_size=30).filter(lambda text: not text.startswith("\n") and not text.endswith("\n")))
def test_any_string_arrives_as_it_was_written(format: ToolFormat, text: str) -> None:
    assert argument(format, "city", text) == text


@pytest.mark.parametrize(
    ("format", "call"),
    [
        (ToolFormat.LFM2, "[f(a=1 + 2)]"),
        (ToolFormat.LFM2, "[f(a={1, 2})]"),
        (ToolFormat.LFM2, "[f(a=b'x')]"),
        (ToolFormat.LFM2, "[f(a=g())]"),
        (ToolFormat.LFM2, "[f(1)]"),
        (ToolFormat.LFM2, f"[f(a={'-' * 900}1)]"),
        (ToolFormat.LFM2, f"[f(a={'[' * 300})]"),
        (ToolFormat.GEMMA4, f"call:f{{a:{'[' * 300}"),
        (ToolFormat.GEMMA4, "call:f{a}"),
        (ToolFormat.KIMI_K2, f"<|tool_call_begin|>{'x' * 600}<|tool_call_argument_begin|>{{}}"),
    ],
)
def test_what_is_no_call_is_content(format: ToolFormat, call: str) -> None:
    text = CALL_FORMATS[format].begin + call + CALL_FORMATS[format].end
    assert parsed(format, text) == parsed(format, *text) == [Content(text)]


def test_numbers_that_json_does_not_have_stay_words_and_those_beyond_floats_are_the_largest() -> None:
    largest = sys.float_info.max
    text = "<|tool_call>call:f{a:inf,b:nan,c:1e999,d:-2.5}<tool_call|>"
    assert calls(parsed(ToolFormat.GEMMA4, text)) == [
        ("f", {"a": "inf", "b": "nan", "c": largest, "d": -2.5})
    ]
    assert calls(parsed(ToolFormat.PYTHONIC, "[f(a=-1e999)]")) == [("f", {"a": -largest})]


@pytest.mark.parametrize(
    ("format", "argument"),
    [
        (ToolFormat.LLAMA4_PYTHONIC, "'a]<|python_end|>\\''"),
        (ToolFormat.LFM2, '"it\'s <|tool_call_end|>"'),
        (ToolFormat.GEMMA4, '<|"|>a<tool_call|><|"|>'),
    ],
    ids=lambda value: value.value if isinstance(value, ToolFormat) else "",
)
def test_a_written_string_may_hold_the_end_of_calls(format: ToolFormat, argument: str) -> None:
    before, text, after = PUBLISHED[format].replace("'", '"').partition('"Bern"')
    if format is ToolFormat.GEMMA4:
        before, text, after = PUBLISHED[format].partition('<|"|>Bern<|"|>')
    assert text
    [(_, arguments), _] = calls(parsed(format, *f"{before}{argument}{after}"))
    assert CALL_FORMATS[format].end in arguments["city"]


def test_strings_are_passed_on_while_they_are_written() -> None:
    reading = parser(ToolFormat.QWEN3_CODER)
    parts = reading.feed("<tool_call>\n<function=weather>\n<parameter=code>\nprint(1)\nprint")
    assert merged(parts) == [Call(0, "weather"), Arguments(0, '{"code": "print(1)\\nprint')]


def test_qwens_calls_may_lack_the_tag_around_them() -> None:
    text = (
        "I look.\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>\nDone."
    )
    parts = parsed(ToolFormat.QWEN3_CODER, *text)
    assert parts == [
        Content("I look."),
        Call(0, "weather"),
        Arguments(0, '{"city": "Bern"}'),
        Content("Done."),
    ]


def test_a_call_within_reasoning_is_reasoning() -> None:
    formats = OutputFormats(ToolFormat.GLM, ReasoningFormat.THINK)
    reading = formats.parser(ToolUse(TOOLS), "")
    assert reading is not None
    text = f"<think>maybe <tool_call>f\n</tool_call></think>{PUBLISHED[ToolFormat.GLM]}"
    assert calls(reading.feed(text) + reading.finish()) == TWO


@pytest.mark.parametrize(
    ("format", "answer"),
    [
        (ReasoningFormat.MISTRAL, "[THINK]hm[/THINK]Yes"),
        (ReasoningFormat.SEED_OSS, "<seed:think>hm</seed:think>Yes"),
        (ReasoningFormat.GEMMA4, "<|channel>thought\nhm<channel|>Yes"),
        (ReasoningFormat.COHERE, "<|START_THINKING|>hm<|END_THINKING|>Yes"),
        (ReasoningFormat.APERTUS, "<|inner_prefix|>hm<|inner_suffix|>Yes"),
        (ReasoningFormat.ERNIE, "<think>\nhm\n</think>\n\n\n<response>\nYes\n</response>\n"),
        (ReasoningFormat.ERNIE, "<think>hm</think>Yes"),
        (ReasoningFormat.HUNYUAN, "<think>\nhm\n</think>\n<answer>\nYes\n</answer>"),
        (ReasoningFormat.THINK, "<think>hm</think>Yes"),
    ],
)
def test_reasoning_has_the_tags_of_the_model(format: ReasoningFormat, answer: str) -> None:
    formats = OutputFormats(reasoning=format)
    reading = formats.parser(ToolUse(), "")
    assert reading is not None
    reasoning, content = merged([part for char in answer for part in reading.feed(char)] + reading.finish())
    assert (getattr(reasoning, "text", None), content) == ("hm", Content("Yes"))
    assert formats.markers(ToolUse())


ERNIE = "<think>\nIt rains.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {"note": "</response>"}}\n</tool_call>\n'


@pytest.mark.parametrize("before", ["", "<response>\nLet me see.\n</response>\n", "Let me see.\n"])
def test_calls_of_ernie_stand_after_the_response_or_in_its_place(before: str) -> None:
    formats = OutputFormats.of_template("<tool_call> <think> <response> </response>", takes_tools=True)
    assert formats == OutputFormats(ToolFormat.HERMES, ReasoningFormat.ERNIE)
    text = ERNIE + before + CALL
    found = []
    for pieces in ([text], [*text], *([text[:cut], text[cut:]] for cut in range(1, len(text)))):
        reading = formats.parser(ToolUse(TOOLS), "")
        assert reading is not None
        found.append(merged([part for piece in pieces for part in reading.feed(piece)] + reading.finish()))
    assert all(parts == found[0] for parts in found)
    assert text_of(found[0]).strip() == ("Let me see." if before else "")
    assert calls(found[0]) == [("f", {"note": "</response>"})]


@pytest.mark.parametrize(
    "text", ["", "<resp", " \n<response", "A <response> tag", "<response>cut </respo", "</response>"]
)
@pytest.mark.parametrize("size", [1, 2, 50])
def test_text_that_is_not_in_tags_or_cut_within_them_is_kept(text: str, size: int) -> None:
    reading = TaggedAnswer("<response>", "</response>")
    parts = [part for at in range(0, len(text), size) for part in reading.feed(text[at : at + size])]
    assert text_of(parts + reading.finish()) == text.removeprefix("<response>")


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("<tool_calls>\n<tool_call>{{ name }}<tool_sep>\n<arg_key>", ToolFormat.HUNYUAN3),
        ("<tool_calls>[", ToolFormat.HUNYUAN),
        ('<longcat_tool_call>\n{"name": <function-name>, "arguments": <args-dict>}', ToolFormat.LONGCAT),
        ("<longcat_tool_call>{name}\n<longcat_arg_key>", ToolFormat.LONGCAT_TAGS),
        ("<|START_ACTION|>[", ToolFormat.COHERE),
        ("{{ '<|tools_prefix|>[' }}", ToolFormat.APERTUS),
        ("... <tool_call>\n<function=example> ...", ToolFormat.QWEN3_CODER),
        ("<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key>", ToolFormat.GLM),
        ("<|tool_calls_section_begin|>", ToolFormat.KIMI_K2),
        ("<｜tool▁calls▁begin｜> ```json", ToolFormat.DEEPSEEK_V3),
        ("<｜tool▁calls▁begin｜>", ToolFormat.DEEPSEEK_V31),
        ("<|tool_call|> followed by a JSON list", ToolFormat.GRANITE),
        ("<|tool_call>call:", None),
        ("no calls", None),
    ],
)
def test_the_format_is_found_in_the_chat_template(template: str, format: ToolFormat | None) -> None:
    assert taught_by(template) is format
