"""JSON Schemas as clients write them: what is accepted is valid by jsonschema, and the usual can be said."""

from __future__ import annotations

import datetime
import json
import random
import re
from decimal import Decimal
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from engine.errors import GrammarError
from engine.grammar.grammar import Grammar, GrammarKind
from engine.grammar.json_schema.patterns import anything_but, ascii_classes, without_look_ahead
from engine.grammar.source import LIMITS, check_grammar, source_of

DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
DECIMAL_5_2 = r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,6}0*$)\d{0,3}\.\d{0,2}0*$)"
DECIMAL_3 = r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,4}0*$)\d*\.\d*0*$)"


@cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")


def accepts(schema: Any, text: str, kind: GrammarKind = GrammarKind.JSON_SCHEMA) -> bool:
    grammar = Grammar(kind, json.dumps(schema) if kind is GrammarKind.JSON_SCHEMA else schema)
    check_grammar(grammar)
    matcher = LLMatcher(_bytes(), source_of(grammar), log_level=0, limits=LIMITS)
    tokens = _bytes().tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())


def says(schema: Any, value: Any) -> bool:
    return accepts(schema, json.dumps(value, ensure_ascii=False))


TREE = {"type": "object", "properties": {"value": {"type": "integer"}, "left": {"$ref": "#"}}}
# fmt: off
SHAPES: list[tuple[Any, list[Any], list[Any]]] = [
    # schema, values that can be said, values that cannot
    (True, [1, "a", {}], []),
    ({"type": "array", "items": True, "minItems": 2.0}, [[1, "a"]], [[1]]),
    # zod's z.record, pydantic's dict[Literal, …]
    (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}},
        [{}, {"a": 1}],
        [{"a": "b"}],
    ),
    (
        {
            "type": "object",
            "propertyNames": {"enum": ["a", "b"]},
            "additionalProperties": {"type": "integer"},
        },
        [{}, {"a": 1}, {"a": 1, "b": 2}],
        [{"c": 1}, {"a": "x"}],
    ),
    ({"type": "object", "propertyNames": {"pattern": "^x"}}, [{}, {"x1": None}], [{"y": 1}]),
    (
        {"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3}},
        [{"ab": 1}],
        [{"a": 1}, {"abcd": 1}],
    ),
    ({"type": "object", "propertyNames": False}, [{}], [{"a": 1}]),
    # formats that are annotations
    *(
        ({"type": "string", "format": name}, ["x"], [1])
        for name in ("password", "path", "binary", "iri", "json-pointer", "regex", "idn-email")
    ),
    ({"type": "integer", "format": "int64"}, [5], ["5"]),
    # pydantic's set[Literal]
    (
        {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", "c"]}},
        [[], ["a"], ["a", "c"], ["a", "b", "c"]],
        [["a", "a"], ["d"]],
    ),
    (
        {
            "type": "array",
            "uniqueItems": True,
            "items": {"$ref": "#/$defs/k"},
            "minItems": 2,
            "$defs": {"k": {"type": "boolean"}},
        },
        [[True, False]],
        [[True], [True, True]],
    ),
    ({"type": "array", "uniqueItems": False}, [[1, 1]], [1]),
    # alternatives
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["a", 1], [None]),
    (
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}},
                    "required": ["kind"],
                },
                {
                    "type": "object",
                    "properties": {"kind": {"const": "b"}, "y": {"type": "string"}},
                    "required": ["kind"],
                },
            ]
        },
        [{"kind": "a", "x": 1}, {"kind": "b", "y": ""}],
        [{"kind": "c"}, {"kind": "a", "x": "1"}],
    ),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, "a"], [3]),
    ({"not": {"type": "integer"}}, ["a", None], [1]),
    ({"type": "string", "not": {"enum": ["ab", "ac"]}}, ["a", "abc", "ad", ""], ["ab", "ac"]),
    ({"type": "object", "properties": {"a": True}, "not": {"required": ["a"]}}, [{}], [{"a": 1}]),
    (
        {
            "if": {"properties": {"k": {"const": "a"}}, "required": ["k"]},
            "then": {"required": ["x"]},
            "else": {"required": ["y"]},
            "type": "object",
            "properties": {"k": {"enum": ["a", "b"]}, "x": {}, "y": {}},
        },
        [{"k": "a", "x": 1}, {"k": "b", "y": 1}],
        [{"k": "a", "y": 1}, {"k": "b", "x": 1}],
    ),
    (
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        [{}, {"a": 1, "b": 2}, {"b": 1}],
        [{"a": 1}],
    ),
    ({"type": "array", "contains": {"const": 5}, "maxContains": 2}, [[5], [5, 1]], [[], [1]]),
    (
        {
            "allOf": [{"properties": {"a": {"type": "integer"}}}],
            "properties": {"b": {}},
            "type": "object",
            "unevaluatedProperties": False,
        },
        [{"b": 1, "a": 2}, {}],
        [{"c": 1}],
    ),
    # what a name is called once, and by one spelling
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, [{"a": 1}], []),
    # pydantic's Decimal
    (
        {"anyOf": [{"type": "number"}, {"type": "string", "pattern": DECIMAL}]},
        ["1.5", "-0.1", 2],
        ["", "-", "a"],
    ),
    (
        {"type": "string", "pattern": DECIMAL_5_2},
        ["123.45", "1", "0001.2", "1.2000"],
        ["1234.5", "1.234", "."],
    ),
    ({"type": "string", "pattern": DECIMAL_3}, ["12.3", ".123", "1.2300"], ["12.34", "1234"]),
    # ECMA 262's classes
    ({"type": "string", "pattern": r"^\S$"}, ["a"], ["\ufeff", " "]),
    ({"type": "string", "pattern": r"^[\s\d]+$"}, ["1 2"], ["a", "٣"]),
    # keywords of other types
    ({"type": "object", "uniqueItems": True, "contains": {"const": 1}, "minLength": 3}, [{"a": [1, 1]}], [1]),
    ({"type": ["string", "null"], "minProperties": 9, "propertyNames": {"format": "x"}, "minLength": 2},
     ["ab", None], ["a", {}]),
    ({"type": "array", "items": {"type": "string", "multipleOf": 99991}}, [["b"]], [[1]]),
    ({"type": "integer", "pattern": "(?!x)y", "minimum": 5}, [7], [3]),
    # recursion
    (TREE, [{"value": 1, "left": {"value": 2, "left": {}}}], [{"left": 1}]),
    ({"const": {"multipleOf": 99999}}, [{"multipleOf": 99999}], [{}]),
    ({"type": "object", "properties": {"multipleOf": True}}, [{"multipleOf": "x"}], []),
]

# fmt: on


@pytest.mark.parametrize(("schema", "good", "bad"), SHAPES)
def test_valid_values_can_be_said_and_invalid_ones_cannot(
    schema: Any, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
        assert says(schema, value), value
    for value in bad:
        assert not says(schema, value), value


NAMES = ("a", "b", "c", "k")
# fmt: off
LEAVES: list[Any] = [
    True, False, {}, {"type": "string"}, {"type": ["integer", "null"]}, {"enum": ["a", 1, True]},
    {"const": "b"}, {"minimum": 2}, {"maxLength": 1}, {"required": ["a"]}, {"minItems": 1}, {"pattern": "^a"},
    {"type": "object"}, {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", 1]}},
    {"properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
    {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]},
]
# fmt: on
KEYWORDS = (
    *("allOf", "anyOf", "oneOf", "prefixItems", "not", "if", "then", "else", "contains", "items"),
    *("additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "properties"),
    *("patternProperties", "dependentSchemas", "dependentRequired", "required", "type"),
    *("minProperties", "minContains", "maxContains"),
)


def some_schema(draw: random.Random, depth: int) -> Any:
    if not depth or draw.random() < 0.15:
        return draw.choice(LEAVES)
    out: dict[str, Any] = {}
    for key in draw.sample(KEYWORDS, draw.randint(1, 4)):
        match key:
            case "allOf" | "anyOf" | "oneOf" | "prefixItems":
                out[key] = [some_schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]
            case "properties" | "dependentSchemas":
                out[key] = {name: some_schema(draw, depth - 1) for name in draw.sample(NAMES, 2)}
            case "patternProperties":
                out[key] = {"^[bc]": some_schema(draw, depth - 1)}
            case "propertyNames":
                out[key] = draw.choice([{"enum": ["a", "k"]}, {"pattern": "^[ab]"}, False])
            case "dependentRequired":
                out[key] = {draw.choice(NAMES): draw.sample(NAMES, 1)}
            case "required":
                out[key] = draw.sample(NAMES, draw.randint(1, 2))
            case "type":
                out[key] = draw.choice(["object", "array", "string", "integer", ["object", "array"]])
            case "minProperties" | "minContains" | "maxContains":
                out[key] = draw.randint(0, 2)
            case _:
                out[key] = some_schema(draw, depth - 1)
    return out


def some_value(draw: random.Random, depth: int = 3) -> Any:
    kind = draw.random()
    if not depth or kind < 0.3:
        return draw.choice([None, True, False, 0, 1, 2, 5, "", "a", "b", "ab"])
    if kind < 0.6:
        return [some_value(draw, depth - 1) for _ in range(draw.randint(0, 3))]
    return {name: some_value(draw, depth - 1) for name in draw.sample(NAMES, draw.randint(0, 3))}


@pytest.mark.parametrize("seed", range(4))
def test_no_schema_accepts_a_value_that_is_invalid(seed: int) -> None:
    """Whatever is combined; a schema may be refused, or accept less."""
    draw, accepted = random.Random(seed), 0
    for _ in range(60):
        schema = some_schema(draw, draw.randint(1, 3))
        try:
            check_grammar(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
        except GrammarError:
            continue
        validator = jsonschema.Draft202012Validator(schema)
        for value in (some_value(draw) for _ in range(12)):
            if says(schema, value):
                assert validator.is_valid(value), (schema, value)
                accepted += 1
    assert accepted > 50


@pytest.mark.parametrize(
    ("text", "refused"),
    [('{"\\u0061": "x"}', True), ('{"a": 1, "a": 2}', True), ('{"a": 1, "b": "\\u00e9"}', True)],
)
def test_a_property_has_one_spelling(text: str, refused: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert accepts(schema, text) is not refused


def test_repeated_names_do_not_count_as_properties() -> None:
    values = {"type": "integer"}
    with pytest.raises(GrammarError, match="minProperties"):
        says({"type": "object", "additionalProperties": values, "minProperties": 3}, {})
    schema = {"type": "object", "properties": {"a": values}, "required": ["a"], "minProperties": 2}
    assert says(schema, {"a": 1, "b": 2})
    assert not accepts(schema, '{"a": 1, "a": 2}')


@given(st.integers(1, 9999), st.integers(0, 13), st.integers(0, 32))
def test_a_date_is_one_that_python_knows(year: int, month: int, day: int) -> None:
    text = f"{year:04}-{month:02}-{day:02}"
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        assert not says({"type": "string", "format": "date"}, text)
    else:
        assert says({"type": "string", "format": "date"}, text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29"], ["2021-02-29", "1900-02-29", "0000-01-01", "2024-02-30"]),
        ("time", ["22:59:59Z", "01:02:03.5+01:00"], ["22:59:60Z", "24:00:00Z", "01:02:03"]),
        ("date-time", ["2024-02-29T00:00:00Z"], ["2021-02-29T00:00:00Z", "1998-12-31T23:58:60Z"]),
        ("hostname", ["example.com", "a-b.c"], ["-a", "a-", "a..b", "a" * 64, "xn--X", ""]),
    ],
)
def test_formats_are_enforced(name: str, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert says({"type": "string", "format": name}, text), text
    for text in bad:
        assert not says({"type": "string", "format": name}, text), text


@given(st.text("0123456789.+-", max_size=9))
def test_decimals_are_those_of_pydantics_pattern(text: str) -> None:
    for pattern in (DECIMAL, DECIMAL_5_2, DECIMAL_3):
        anchored = pattern.replace("{0,3}|", "{0,3}$|")  # pydantic's own lets anything follow
        rewritten = all(re.search(part, text) for part in without_look_ahead(pattern))
        assert rewritten == bool(re.search(anchored, text)), pattern
    if re.search(DECIMAL, text) and text.strip("+-.0123456789") == "":
        Decimal(text)


@given(st.lists(st.text("ab]\\^-é", max_size=3), max_size=4), st.text("ab]\\^-é", max_size=4))
def test_anything_but_some_words(words: list[str], text: str) -> None:
    pattern = re.sub(r"\\u\{([0-9A-F]+)\}", lambda m: re.escape(chr(int(m[1], 16))), anything_but(words))
    assert bool(re.search(pattern, text)) == (text not in words)


def test_classes_inside_and_outside_of_brackets() -> None:
    assert ascii_classes(r"\d[\d\-]\\d[]a]") == r"[0-9][0-9\-]\\d[]a]"
    assert accepts(r"\d{2}\w", "42x", GrammarKind.REGEX)
    assert not accepts(r"\d{2}\w", "٤٢x", GrammarKind.REGEX)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"multipleOf": True}, "multipleOf must be a number"),
        ({"$defs": []}, "\\$defs must be an object"),
        ({"$ref": 5}, "\\$ref must be a string"),
        ({"$ref": "#"}, "refer to itself"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, "oneOf"),
        ({"allOf": {}}, "allOf must be an array"),
        ({"properties": {"a": 5}}, "properties must have schemas"),
        ({"minLength": -1}, "minLength must be a count"),
        ({"const": "a\u0001"}, "control characters"),
        (False, "object or true"),
    ],
)
def test_what_cannot_be_enforced_is_refused_in_plain_words(schema: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as refusal:
        says(schema, 1)
    assert "\n" not in str(refusal.value)
    assert "coerce_one_of" not in str(refusal.value)


def test_alternatives_that_multiply_are_refused_before_they_take_memory() -> None:
    definitions: dict[str, Any] = {"d0": {"const": 1}}
    for k in range(1, 30):
        one = {"allOf": [{"$ref": f"#/$defs/d{k - 1}"}, {"$ref": f"#/$defs/d{k - 1}"}]}
        definitions[f"d{k}"] = {"anyOf": [one, {"not": one}], "unevaluatedProperties": False}
    with pytest.raises(GrammarError):
        says({"$ref": "#/$defs/d29", "$defs": definitions}, 1)
