"""Schemas of values that another schema refuses: for `not`, `oneOf`, and `else`.

What is returned may refuse too much, never too little, so an output that follows it is valid.
"""

from __future__ import annotations

from typing import Any, Final

from engine.grammar.json_schema.document import Document, Schema
from engine.grammar.json_schema.patterns import anything_but

TYPES: Final = ("null", "boolean", "number", "string", "array", "object")
_DEPTH: Final = 12
"""Depth to which references and combinations are followed."""
_NO_KEYWORDS: Final = frozenset({"$ref", "title", "description", "default", "$defs", "definitions"})
_BOUNDS: Final = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}


def type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def types_of(document: Document, schema: Schema | None, depth: int = _DEPTH) -> frozenset[str]:
    """Types that the schema's values may have: all of them if that is not known."""
    document.spend()
    every = frozenset(TYPES)
    if schema is None or schema is True or not depth:
        return every
    if schema is False:
        return frozenset()
    found = every
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        found &= {"number" if name == "integer" else name for name in named}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        found &= {type_of(value) for value in values}
    if isinstance(reference := schema.get("$ref"), str):
        found &= types_of(document, document.resolve(reference), depth - 1)
    for part in schema.get("allOf", ()):
        found &= types_of(document, part, depth - 1)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            found &= frozenset[str]().union(*(types_of(document, s, depth - 1) for s in schema[key]))
    return found


def are_disjoint(document: Document, one: Schema | None, other: Schema | None, depth: int = _DEPTH) -> bool:
    """Whether no value follows both, as far as that can be seen."""
    document.spend()
    if one is False or other is False:
        return True
    if not depth:
        return False
    common = types_of(document, one) & types_of(document, other)
    if not common:
        return True
    first, second = _flat(document, one, depth), _flat(document, other, depth)
    values, others = _values(first), _values(second)
    if values is not None and others is not None and not any(_same(a, b) for a in values for b in others):
        return True
    if common == {"object"}:
        return any(
            _differ_in_a_property(document, a, b, depth) for a, b in ((first, second), (second, first))
        )
    return False


def _differ_in_a_property(document: Document, one: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
    """Whether a property that `one` requires is one that `other` cannot have, or has with other values."""
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    for name in one.get("required", ()):
        if name in theirs:
            if theirs[name] is False:
                return True
            if name in mine and are_disjoint(document, mine[name], theirs[name], depth - 1):
                return True
        elif other.get("additionalProperties") is False and "patternProperties" not in other:
            return True
    return False


def _flat(document: Document, schema: Schema | None, depth: int) -> dict[str, Any]:
    """The schema itself, or what it refers to if it is nothing but a reference."""
    if not isinstance(schema, dict):
        return {}
    if "$ref" in schema and depth and schema.keys() <= _NO_KEYWORDS:
        return _flat(document, document.resolve(schema["$ref"]), depth - 1)
    return schema


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _same(one: Any, other: Any) -> bool:
    """JSON Schema's equality: 1 is 1.0, and true is not 1."""
    return type_of(one) == type_of(other) and bool(one == other)


def negation(document: Document, schema: Schema | None, depth: int = _DEPTH) -> Schema:
    """Values that do not follow the schema; False if there are none, or none are known."""
    document.spend()
    if schema is None or schema is True or not depth:
        return False
    if schema is False:
        return True
    found: list[Schema] = []
    for key, value in schema.items():
        if key in _BOUNDS and isinstance(value, int | float):
            kind, opposite, shift = _BOUNDS[key]
            if value + shift >= 0 or kind == "number":
                found.append({"type": kind, opposite: value + shift})
            continue
        match key, value:
            case "type", _:
                names = value if isinstance(value, list) else [value]
                excluded = {"number" if name == "integer" else name for name in names}
                found.append({"type": [name for name in TYPES if name not in excluded]})
            case ("const", _) | ("enum", list()):
                found += _others([value] if key == "const" else value)
            case "required", list():
                found += [{"type": "object", "properties": {name: False}} for name in value]
            case "properties", dict():
                for name, part in value.items():
                    if (other := negation(document, part, depth - 1)) is not False:
                        found.append({"type": "object", "properties": {name: other}, "required": [name]})
            case "$ref", str():
                found.append(negation(document, document.resolve(value), depth - 1))
            case "not", bool() | dict():
                found.append(value)
            case "allOf", list():
                found += [negation(document, part, depth - 1) for part in value]
            case "anyOf", list():
                parts = [negation(document, part, depth - 1) for part in value]
                if False not in parts:
                    found.append({"allOf": parts})
            case _:
                pass
    found = [part for part in found if part is not False and part != {"type": []}]
    if not found:
        return False
    return found[0] if len(found) == 1 else {"anyOf": found}


def _others(values: list[Any]) -> list[Schema]:
    kinds = {type_of(value) for value in values}
    found: list[Schema] = [{"type": [name for name in TYPES if name not in kinds]}]
    if "string" in kinds:
        words = [value for value in values if isinstance(value, str)]
        found.append({"type": "string", "pattern": anything_but(words)})
    if "boolean" in kinds:
        found += [{"const": other} for other in (True, False) if not any(v is other for v in values)]
    return found
