"""`unevaluatedProperties` and `unevaluatedItems` in terms of `additionalProperties` and `items`.

What the keywords beside them evaluate depends on the value: an alternative counts only if the value follows
it. So the alternatives are told apart, and each is closed by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

from engine.grammar.json_schema.document import Document, Schema
from engine.grammar.json_schema.negation import are_disjoint, negation

UNEVALUATED: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_MAX_ALTERNATIVES: Final = 64
_DEPTH: Final = 8


def closed(document: Document, schema: dict[str, Any]) -> Schema:
    """The schema without these keywords, accepting the same or less. Raises ValueError."""
    rest = {key: value for key, value in schema.items() if key not in UNEVALUATED}
    names = schema.get("unevaluatedProperties", True)
    items = schema.get("unevaluatedItems", True)
    if names is True and items is True:
        return rest
    kept = {key: rest.pop(key) for key in _DOCUMENT & rest.keys()}
    found: list[dict[str, Any]] = []
    for pieces in _alternatives(document, rest, _DEPTH):
        found.append({"allOf": [*pieces, *_closing(pieces, names, items)]})
        if len(found) > _MAX_ALTERNATIVES:
            raise ValueError("unevaluatedProperties and unevaluatedItems have too many alternatives here")
    if not found:
        raise ValueError("unevaluatedProperties and unevaluatedItems leave no alternative here")
    return kept | ({"anyOf": found} if len(found) > 1 else found[0])


_DOCUMENT: Final = frozenset({"$schema", "$id", "$defs", "definitions", "$anchor", "$dynamicAnchor"})


def _closing(pieces: list[dict[str, Any]], names: Schema, items: Schema) -> Iterator[Schema]:
    if names is not True and not any(_PROPERTIES_CLOSED & piece.keys() for piece in pieces):
        known = {name: True for piece in pieces for name in piece.get("properties", {})}
        patterns = {name: True for piece in pieces for name in piece.get("patternProperties", {})}
        yield {"properties": known, "patternProperties": patterns, "additionalProperties": names}
    if items is not True and not any(_ITEMS_CLOSED & piece.keys() for piece in pieces):
        count = max((len(piece.get("prefixItems", ())) for piece in pieces), default=0)
        yield {"prefixItems": [True] * count, "items": items}


_PROPERTIES_CLOSED: Final = frozenset({"additionalProperties", "unevaluatedProperties"})
_ITEMS_CLOSED: Final = frozenset({"items", "unevaluatedItems"})


def _alternatives(document: Document, schema: Schema, depth: int) -> Iterator[list[dict[str, Any]]]:
    """Lists of schemas without alternatives: a value that follows all of a list follows the schema."""
    document.spend()
    if schema is False:
        return
    if schema is True:
        yield []
        return
    if not depth:
        raise ValueError("unevaluatedProperties and unevaluatedItems look through few references only")
    plain = {key: value for key, value in schema.items() if key not in _APPLICATORS}
    choices: list[list[list[dict[str, Any]]]] = [[[plain]]]
    for wanted in _applied(document, schema):
        options = [option for part in wanted for option in _alternatives(document, part, depth - 1)]
        choices.append(options)
        if len(options) > _MAX_ALTERNATIVES:
            raise ValueError("unevaluatedProperties and unevaluatedItems have too many alternatives here")
    for chosen in itertools.product(*choices):
        yield [piece for pieces in chosen for piece in pieces]


def _applied(document: Document, schema: dict[str, Any]) -> Iterator[list[Schema]]:
    """For each keyword that applies schemas in place: the alternatives that it leaves."""
    for key in ("$ref", "$dynamicRef"):
        if key in schema:
            target = document.resolve(schema[key])
            if target is None or (key == "$dynamicRef" and not document.has_static_anchors):
                raise ValueError(f"{key} cannot be followed beside unevaluatedProperties or unevaluatedItems")
            yield [target]
    for part in schema.get("allOf", ()):
        yield [part]
    if "anyOf" in schema:
        yield schema["anyOf"]
    if "oneOf" in schema:
        alternatives = schema["oneOf"]
        yield [
            {"allOf": [one, *({"not": other} for other in alternatives if not _differ(document, one, other))]}
            for one in alternatives
        ]
    if "if" in schema:
        condition = schema["if"]
        yes: Schema = {"allOf": [condition, schema.get("then", True)]}
        no: Schema = {"allOf": [{"not": condition}, schema.get("else", True)]}
        yield [yes, no] if negation(document, condition) is not False else [yes]
    for name, part in schema.get("dependentSchemas", {}).items():
        yield [{"properties": {name: False}}, {"allOf": [{"required": [name]}, part]}]


def _differ(document: Document, one: Schema, other: Schema) -> bool:
    return one is other or are_disjoint(document, one, other)


_APPLICATORS: Final = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"}
)
