"""What the grammar of a forced call allows, the parser of the same format reads back as valid calls."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from engine.errors import GrammarError
from engine.grammar.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind
from engine.grammar.source import LIMITS, check_grammar, source_of
from router.api.generation.forced.call_texts import CALL_TEXTS
from router.api.generation.forced.forced_calls import ForcedCalls, forced_calls
from router.api.generation.output.call_formats import ToolFormat
from router.api.generation.output.formats import OutputFormats
from router.api.generation.output.parts import Part, ReasoningPart
from router.api.generation.output.reasoning import ReasoningFormat
from router.api.generation.tools import Tool, ToolChoice, ToolUse
from tests.unit.router.api.generation.test_call_formats import PUBLISHED, calls, text_of
from tests.unit.router.api.generation.test_output_parsers import merged

BYTES: Final = LLTokenizer("byte")
CLOSERS: Final = [
    text.encode()
    for text in (
        *('"', "}", "]", ")", "\n</parameter>", "</parameter>", "</arg_value>", "</longcat_arg_value>"),
        *("<escape>", '<|"|>'),
    )
]
LONG: Final = 400
"""Bytes after which a walk takes every way to the end."""


def allowed(matcher: LLMatcher) -> list[int]:
    mask = matcher.compute_bitmask()
    return [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]


def walked(grammar: Grammar, seed: int, closers: list[bytes] = CLOSERS) -> str:
    """A text that the grammar allows, by random bytes."""
    chance = random.Random(seed)
    matcher = LLMatcher(BYTES, source_of(grammar), log_level=0, limits=LIMITS)
    written, wanted = bytearray(), b""
    while len(written) < 20 * LONG:
        if matcher.is_accepting() and (len(written) > LONG or chance.random() < 0.6):
            return written.decode()
        ways = allowed(matcher)
        if not ways and matcher.is_accepting():
            return written.decode()
        assert ways, (matcher.get_error(), bytes(written))
        closing = [text for text in closers if text[0] in ways]
        if not wanted and closing and chance.random() < (0.9 if len(written) > LONG else 0.2):
            wanted = chance.choice(closing)
        if wanted and wanted[0] in ways:
            byte, wanted = wanted[0], wanted[1:]
        else:
            plain = [way for way in ways if 32 < way < 127]
            byte, wanted = chance.choice(plain if plain and chance.random() < 0.9 else ways), b""
        assert matcher.consume_token(byte)
        written.append(byte)
    raise AssertionError(f"no end: {bytes(written[:2000])!r}")


def read(formats: OutputFormats, forced: ForcedCalls, text: str, size: int, prompt: str = "") -> list[Part]:
    parser = formats.parser(forced.read_as, prompt)
    assert parser
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    return merged([part for piece in pieces for part in parser.feed(piece)] + parser.finish())


SCALARS: Final = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "enum": ["C", "F", "two words"]},
        {"type": "string", "minLength": 2, "maxLength": 5},
        {"type": "string", "pattern": "^[a-z]{2,4}(-[A-Z]+)?$"},
        {"type": "string", "format": "uri"},
        {"const": "fixed"},
        {"type": "integer"},
        {"type": "integer", "minimum": 3, "maximum": 40},
        {"type": "number"},
        {"type": "boolean"},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]},
        {"type": ["integer", "null"]},
        {"enum": [1, 2, None]},
        {"$ref": "#/$defs/unit"},
    ]
)


def properties(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    named = st.dictionaries(st.sampled_from(["city", "days", "note", "file_path"]), values, max_size=4)
    return named.flatmap(
        lambda found: (
            st.lists(st.sampled_from(sorted(found)), unique=True).map(
                lambda required: {"type": "object", "properties": found, "required": required}
            )
            if found
            else st.just({"type": "object", "properties": {}})
        )
    )


VALUES: Final = st.one_of(
    SCALARS,
    SCALARS.map(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 3}),
    properties(SCALARS).map(lambda found: {**found, "additionalProperties": False}),
)
SCHEMAS: Final = properties(VALUES).map(
    lambda found: {**found, "additionalProperties": False, "$defs": {"unit": {"enum": ["m", "km"]}}}
)


def with_markers(format: ToolFormat) -> list[bytes]:
    texts = CALL_TEXTS[format]
    return [*CLOSERS, *(text.encode() for text in (texts.after, texts.end) if text)]


@pytest.mark.parametrize("format", ToolFormat, ids=lambda format: format.value)
@settings(max_examples=25, deadline=None)
@given(
    schemas=st.lists(SCHEMAS, min_size=1, max_size=2),
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 3, 10_000]),
    parallel=st.booleans(),
)
def test_what_the_grammar_allows_is_read_as_valid_calls(
    format: ToolFormat, schemas: list[dict[str, Any]], seed: int, size: int, parallel: bool
) -> None:
    tools = tuple(Tool(f"tool_{k}", parameters=schema) for k, schema in enumerate(schemas))
    formats = OutputFormats(format)
    forced = forced_calls(formats, ToolUse(tools, ToolChoice.REQUIRED, parallel), "", {})
    assert forced.grammar.kind is GrammarKind.EBNF
    text = walked(forced.grammar, seed, with_markers(format))
    parts = read(formats, forced, text, size)
    found = calls(parts)
    assert found, text
    assert not text_of(parts).strip()
    assert parallel or len(found) == 1
    by_name = {tool.name: tool.parameters for tool in tools}
    for name, arguments in found:
        jsonschema.validate(arguments, by_name[name])


@pytest.mark.parametrize("format", ToolFormat, ids=lambda format: format.value)
def test_a_named_tool_is_called_once(format: ToolFormat) -> None:
    tool = Tool("only", parameters={"type": "object", "properties": {"n": {"type": "integer"}}})
    formats = OutputFormats(format)
    forced = forced_calls(formats, ToolUse((tool,), ToolChoice.NAMED), "", {})
    for seed in range(5):
        text = walked(forced.grammar, seed, with_markers(format))
        [(name, _)] = calls(read(formats, forced, text, 1))
        assert name == "only"


@pytest.mark.parametrize(
    "format",
    [found for found in PUBLISHED if found is not ToolFormat.PYTHONIC],
    ids=lambda format: format.value,
)
@pytest.mark.parametrize(
    ("reasoning", "prompt"),
    [
        (ReasoningFormat.THINK, "?<think>\n"),
        (ReasoningFormat.THINK, "?<think>\n\n</think>\n\n"),
        (ReasoningFormat.THINK, "?"),
        (ReasoningFormat.DEEPSEEK_R1, "?"),
    ],
)
def test_reasoning_comes_first_where_the_prompt_has_opened_it_and_may_where_it_has_not_closed_it(
    format: ToolFormat, reasoning: ReasoningFormat, prompt: str
) -> None:
    tool = Tool("f", parameters={"type": "object", "properties": {"n": {"type": "integer"}}})
    formats = OutputFormats(format, reasoning)
    forced = forced_calls(formats, ToolUse((tool,), ToolChoice.REQUIRED), prompt, {})
    opened = reasoning is ReasoningFormat.DEEPSEEK_R1 or prompt.endswith("<think>\n")
    for seed in range(6):
        text = walked(forced.grammar, seed, [*with_markers(format), b"</think>", b"<think>"])
        parts = read(formats, forced, text, 3, prompt)
        assert calls([part for part in parts if not isinstance(part, ReasoningPart)])
        assert not text_of(parts).strip()
        thought = any(isinstance(part, ReasoningPart) for part in parts)
        assert "</think>" in text if opened else not (thought and prompt.endswith("</think>\n\n"))


def test_harmonys_analysis_may_come_first() -> None:
    formats = OutputFormats(ToolFormat.HARMONY, ReasoningFormat.HARMONY)
    forced = forced_calls(formats, ToolUse((Tool("f"),), ToolChoice.REQUIRED), "", {})
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f"
        " <|constrain|>json<|message|>{}"
    )
    matcher = LLMatcher(BYTES, source_of(forced.grammar), log_level=0, limits=LIMITS)
    assert matcher.consume_tokens(list(text.encode()))
    assert matcher.is_accepting()
    parts = read(formats, forced, text, 1)
    assert parts[0] == ReasoningPart("Hm.")
    assert calls(parts[1:]) == [("f", {})]


@pytest.mark.parametrize(
    ("format", "schema"),
    [
        (ToolFormat.QWEN3_CODER, {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}),
        (ToolFormat.GLM, {"properties": {"a": {"enum": ["x", 1]}}}),
        (ToolFormat.GLM, {"properties": {"a": {"type": "string", "pattern": "^(?!x)y"}}}),
        (ToolFormat.MINIMAX_M2, {"properties": {'a">': {"type": "integer"}}}),
        (ToolFormat.LFM2, {"properties": {"from": {"type": "integer"}}}),
        (ToolFormat.GEMMA4, {"properties": {"a": {}}}),
    ],
)
def test_a_schema_that_the_format_cannot_enforce_makes_the_calls_json(
    format: ToolFormat, schema: Mapping[str, Any]
) -> None:
    use = ToolUse((Tool("f", parameters={"type": "object", **schema}),), ToolChoice.REQUIRED)
    forced = forced_calls(OutputFormats(format), use, "", {})
    assert (forced.grammar.kind, forced.read_as) == (GrammarKind.JSON_SCHEMA, use)


def test_special_tokens_are_written_as_tokens() -> None:
    special = {"[TOOL_CALLS]": 9, "[ARGS]": 32}
    use = ToolUse((Tool("f"),), ToolChoice.REQUIRED)
    grammar = forced_calls(OutputFormats(ToolFormat.MISTRAL), use, "", special).grammar
    assert '<[9]> "f"' in grammar.text
    assert "<[32]>" in grammar.text
    check_grammar(grammar)
    older = forced_calls(OutputFormats(ToolFormat.MISTRAL), use, "", {"[TOOL_CALLS]": 9}).grammar
    assert '<[9]> "[" ' in older.text
    check_grammar(older)


def test_schemas_within_a_grammar_are_enforced_like_those_of_an_answer() -> None:
    schema = json.dumps({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True})
    grammar = Grammar(GrammarKind.EBNF, f'start: "%json" /%json/ %json {schema} // %json')
    matcher = LLMatcher(BYTES, source_of(grammar), log_level=0, limits=LIMITS)
    right, wrong = (list(f"%json%json{text}".encode()) for text in ('["a","b"]', '["a","a"]'))
    assert matcher.validate_tokens(right) == len(right)
    assert matcher.validate_tokens(wrong) < len(wrong)
    large = replace(grammar, text='start: %json {"multipleOf": 99991}')
    with pytest.raises(GrammarError, match="multipleOf"):
        source_of(large)


_CHAIN = {f"d{k}": {"anyOf": [{"$ref": f"#/$defs/d{k + 1}"}] * 40} for k in range(12)}
_TREE = {
    f"d{k}": {"type": "object", "properties": {key: {"$ref": f"#/$defs/d{k + 1}"} for key in "abcd"}}
    for k in range(12)
}
_WIDE = {f"k{number}": {"$ref": "#/$defs/d12"} for number in range(20_000)}
_ENDS = {"d12": {"type": "integer"}}


@pytest.mark.parametrize("format", ToolFormat, ids=lambda format: format.value)
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": _CHAIN | _ENDS},
        {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": _TREE | _ENDS},
        {"properties": _WIDE, "$defs": _ENDS},
        {"properties": {"a": {"$ref": "#/required"}}, "required": ["a"]},
        {"properties": {"a": {"anyOf": []}}},
        {"properties": {"a": {"enum": []}}},
        {"properties": {"a": {"type": "array", "minItems": 2.0, "items": {"type": "integer"}}}},
        {"properties": []},
        {"properties": {"a": 5}, "required": "a"},
        {"properties": {"a": {"type": "string", "pattern": 3, "minLength": "x"}}},
    ],
)
def test_hostile_schemas_cost_little_and_are_left_to_the_check_of_grammars(
    format: ToolFormat, schema: dict[str, Any]
) -> None:
    use = ToolUse((Tool("f", parameters={"type": "object", **schema}),), ToolChoice.REQUIRED)
    grammar = forced_calls(OutputFormats(format), use, "", {}).grammar
    assert grammar.kind is GrammarKind.JSON_SCHEMA or len(grammar.text) < 2 * MAX_GRAMMAR_BYTES
